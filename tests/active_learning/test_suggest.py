"""Scores match the enumerated distribution, and each text is written or counted."""

import json
import math
from concurrent.futures.process import BrokenProcessPool
from datetime import UTC, datetime
from decimal import Decimal
from itertools import pairwise

import pyarrow
import pytest
import spacy
from pyarrow import parquet
from spacy.tokens import DocBin, Span

from overlapping import make_overlapping
from pipelines import copied
from spacy_crf_ner.active_learning import Options, ranking, suggest, suggestion
from spacy_crf_ner.active_learning.exclusion import annotated_ids, is_excluded
from spacy_crf_ner.active_learning.ranking import identify, rank_texts
from spacy_crf_ner.active_learning.selection import Unit
from spacy_crf_ner.annotate import Settings, WorkerError, multiprocess
from spacy_crf_ner.data.offsets import INCORRECT
from spacy_crf_ner.input_error import InputError
from spacy_crf_ner.pipeline.annotated_labels import mark_annotated_labels

LABELS = "LOC", "PER"
TEXTS = ["Anna saw Bonn", "Bonn came", "It", "Élan 🙂 Bonn", "saw Anna saw", "It came", "Zoë it"]


def enumerated(nlp, text):
    """All labelings of a short text, each with its probability."""
    (labelings,) = nlp.get_pipe("crf_ner").nbest([nlp.make_doc(text)], 50)
    assert math.fsum(each.probability for each in labelings) == pytest.approx(1, abs=1e-6)
    return [
        ({(e.start_char, e.end_char, e.label_) for e in each.ents}, each.probability)
        for each in labelings
    ]


def by_definition(strategy, nlp, text):
    labelings, T = enumerated(nlp, text), len(nlp.make_doc(text))
    p = [each for _, each in labelings]
    if strategy == "entropy":
        return -math.fsum(each * math.log(each) for each in p if each) / T
    best = labelings[0][0]
    spans = {span for ents, _ in labelings for span in ents}
    probability = {s: math.fsum(q for ents, q in labelings if s in ents) for s in spans}
    missed = math.fsum(p for s, p in probability.items() if s not in best and p >= 0.01)
    return (missed + math.fsum(1 - probability[s] for s in best)) / T


def only(found):
    """The one unit of each text."""
    return [unit for units in found for unit in units]


@pytest.mark.parametrize("strategy", ["entropy", "errors"])
def test_rank_texts_scores_match_enumeration(unsure, strategy):
    found, _ = rank_texts(unsure, TEXTS, Options(strategy=strategy))
    units = only(found)
    scores = [by_definition(strategy, unsure, text) for text in TEXTS]
    assert [unit.text for unit in units] == TEXTS  # no score is of another text
    assert [unit.score for unit in units] == pytest.approx(scores, abs=1e-5)
    selection = Options(
        n=len(TEXTS), random_share=0, max_per_surface=0, strategy=strategy
    ).selection()
    selection.add(units)
    best_first = sorted(zip(scores, TEXTS), reverse=True)
    assert [unit.text for unit in selection.ranked] == [text for _, text in best_first]


@pytest.mark.parametrize("temperature", [1.0, 0.1])
def test_rank_texts_spans_match_enumerated_uncertain_spans(unsure, temperature):
    nlp = copied(unsure)
    nlp.get_pipe("crf_ner").temperature = temperature
    found, _ = rank_texts(nlp, TEXTS, Options(unit="spans"))
    asked = {(unit.text, unit.question): unit for unit in only(found)}
    expected, highest = {}, 0.0
    for text in TEXTS:
        labelings = enumerated(nlp, text)
        for span in {span for ents, _ in labelings for span in ents}:
            p = math.fsum(q for ents, q in labelings if span in ents)
            highest = max(highest, p)
            if 0.05 <= p <= 0.95:
                expected[text, span] = 0.5 - abs(p - 0.5)
    assert expected and (highest > 0.95 or temperature == 1.0)  # of certain spans, none is asked
    assert {key: unit.score for key, unit in asked.items()} == pytest.approx(expected, abs=1e-5)
    for (text, (start, end, _)), unit in asked.items():
        assert unit.surface == text[start:end].casefold()


@pytest.mark.parametrize("uncertain", [0.05, 0.45])
def test_rank_texts_surface_is_most_uncertain_span(unsure, monkeypatch, uncertain):
    monkeypatch.setattr(ranking, "UNCERTAIN", uncertain)
    found, _ = rank_texts(unsure, TEXTS, Options())
    expected = []
    for text in TEXTS:
        by_span = {}
        for ents, p in enumerated(unsure, text):
            for span in ents:
                by_span[span] = by_span.get(span, 0.0) + p
        worst = max((min(p, 1 - p), span) for span, p in by_span.items())
        start, end, _ = worst[1]
        expected.append(text[start:end].casefold() if worst[0] >= uncertain else "")
    assert [unit.surface for unit in only(found)] == expected
    assert len({*expected}) > 2 if uncertain == 0.05 else "" in expected


def test_random_scores_depend_on_seed_and_text_alone(unsure):
    def scores(texts, seed):
        found, _ = rank_texts(unsure, texts, Options(strategy="random", seed=seed))
        return {unit.text: unit.score for unit in only(found)}

    assert scores(TEXTS, 0) == scores(TEXTS[::-1], 0)
    assert scores(TEXTS, 0) != scores(TEXTS, 1)
    assert scores(TEXTS[:2], 0).items() <= scores(TEXTS, 0).items()


def test_rank_texts_sentences_have_offsets_and_separate_scores(unsure):
    sentences = ["Anna saw Bonn now.", "It came to Bonn!", "Anna saw it in Bonn"]
    text = "{}  {}\n\n{}".format(*sentences)
    (units,), _ = rank_texts(unsure, [text], Options(unit="sentences"))
    assert [unit.text for unit in units] == sentences
    for unit in units:
        start = unit.source["offset"]
        assert text[start : start + len(unit.text)] == unit.text
    (same,), _ = rank_texts(unsure, [unsure.make_doc(text).to_bytes()], Options(unit="sentences"))
    assert same == units
    alone, _ = rank_texts(unsure, [unit.text for unit in units], Options())
    assert [unit.score for unit in units] == pytest.approx([u.score for u in only(alone)], abs=1e-5)


@pytest.mark.parametrize("starts", [{0}, {0, 1}, {0, 2, 5}])
def test_rank_texts_docs_ignore_existing_sentence_starts(unsure, starts):
    """Another component may have marked others."""
    text = "Anna saw Bonn now. It came to Bonn!"
    doc = unsure.make_doc(text)
    for token in doc:
        token.is_sent_start = token.i in starts
    (units,), _ = rank_texts(unsure, [doc.to_bytes()], Options(unit="sentences"))
    assert [unit.text for unit in units] == ["Anna saw Bonn now.", "It came to Bonn!"]


def test_rank_texts_short_sentences_join_a_neighbor(unsure):
    long, other = "Anna saw Bonn and Zoë.", "It came to Bonn!"
    expected = {
        f"{long} (ref 31)": [f"{long} (ref 31)"],
        f"{long} Yes. {other}": [f"{long} Yes.", other],
        f"Bonn.\n\n{long} {other}": [f"Bonn.\n\n{long}", other],
        f"{long} \n No. Yes. {other}": [f"{long} \n No.", f"Yes. {other}"],
        f"{long} No. Yes.": [f"{long} No. Yes."],
        "It came. Yes.": ["It came. Yes."],
        "Yes.": ["Yes."],
        "Yes. " * 9: ["Yes. Yes. Yes.", "Yes. Yes. Yes.", "Yes. Yes. Yes."],
    }
    for unit in ("sentences", "spans"):
        options = Options(unit=unit, strategy="errors")
        for text, units in expected.items():
            for given in (text, unsure.make_doc(text).to_bytes()):
                (found,), _ = rank_texts(unsure, [given], options)
                texts = [*dict.fromkeys((u.source["offset"], u.text) for u in found)]
                assert [each for _, each in texts] == units or unit == "spans"
                assert {each for _, each in texts} <= {*units}
                assert all(text[at : at + len(each)] == each for at, each in texts)


@pytest.mark.parametrize(
    "one, other, same",
    [("ref 31", "Ref 8", True), ("A-1.50", "a-22.7", True), ("٣ km", "12 km", True),
     ("ref 31", "rev 31", False), ("ref 31", "ref", False)],
)  # fmt: skip
def test_surface_is_equal_if_only_numbers_or_case_differ(one, other, same):
    assert (ranking.surface_of(one) == ranking.surface_of(other)) == same


@pytest.mark.parametrize("unit", ["docs", "sentences"])
def test_rank_texts_docs_keep_their_tokens(unsure, unit):
    tokens = [("An", False), ("na", True), ("came", True), ("to", True), ("Bonn", False)]
    doc = spacy.tokens.Doc(unsure.vocab, *map(list, zip(*tokens)))
    ((found,),), _ = rank_texts(unsure, [doc.to_bytes()], Options(unit=unit))
    assert (found.text, found.tokens) == ("Anna came to Bonn", tokens)


def test_rank_texts_improbable_entity_adds_to_errors_score(unsure, monkeypatch):
    """Viterbi decoding may choose an entity that has a probability near 0."""
    measured = ranking._measure

    def improbable(*arguments):
        changes = {"entities": [((0, 4, "PER"), 0.001)], "candidates": []}
        return [each._replace(**changes) for each in measured(*arguments)]

    monkeypatch.setattr(ranking, "_measure", improbable)
    ((unit,),), _ = rank_texts(unsure, ["Anna saw Bonn"], Options(strategy="errors"))
    assert unit.score == pytest.approx(0.999 / 3)


@pytest.mark.parametrize("unit", ["docs", "sentences"])
def test_rank_texts_docs_keep_norms_of_tokenizer_exceptions(unsure, unit):
    """With other norms, the model reads other words than in prediction."""
    text = "I can't. Anna won't come."
    doc = unsure.make_doc(text)
    assert "not" in [token.norm_ for token in doc]
    expected, _ = rank_texts(unsure, [text], Options(unit=unit, strategy="entropy"))
    found, _ = rank_texts(unsure, [doc.to_bytes()], Options(unit=unit, strategy="entropy"))
    assert [u.score for u in only(found)] == pytest.approx([u.score for u in only(expected)])


def test_rank_texts_chunked_text_matches_whole_text(unsure):
    text = "Anna saw Bonn. It came. " * 40
    options, settings = Options(), Settings(max_characters=200)
    ((whole,),), _ = rank_texts(unsure, [text], options)
    ((parts,),), _ = rank_texts(unsure, [text], options, settings)
    assert parts.tokens == whole.tokens
    assert [span for span, _ in parts.entities] == [span for span, _ in whole.entities]
    assert parts.score == pytest.approx(whole.score, rel=0.05)


def test_rank_texts_text_over_max_length_sets_error(unsure, monkeypatch):
    settings = Settings(max_characters=2000)  # of its parts
    text = "Hanoi is fun. " * 1000
    texts = [text, "Hanoi.", unsure.make_doc(text).to_bytes()]
    with monkeypatch.context() as patch:
        patch.setattr(unsure, "max_length", 13_999)
        found, documents = rank_texts(unsure, texts, Options(unit="docs"), settings)
    expected = (
        "ValueError: expected at most 13,999 characters, as in answers, got 14,000. "
        "Ask for sentences"
    )
    assert [document.error for document in documents] == [expected, None, expected]
    assert [len(units) for units in found] == [0, 1, 0]


@pytest.mark.parametrize("unit", ["docs", "sentences", "spans"])
def test_rank_texts_token_across_cut_sets_error(unsure, unit):
    options, settings = Options(unit=unit), Settings(max_characters=2000)
    texts = ["Bonn came", f"Anna {'x' * 7000} came"]
    found, documents = rank_texts(unsure, texts, options, settings)
    assert found[0] and not found[1]
    assert documents[0].error is None
    assert documents[1].error.startswith("ValueError: expected spaces in a long text")


def test_rank_texts_entity_ending_inside_token_at_cut_sets_error(unsure):
    nlp = copied(unsure)
    ruler = nlp.add_pipe("entity_ruler", first=True)
    ruler.add_patterns([{"label": "REF", "pattern": [{"LOWER": "see"}, {"LIKE_URL": True}]}])
    texts = [f"{'It ' * 665}See http://a.com/{'a' * 3000} came", "Anna saw Bonn"]
    found, documents = rank_texts(nlp, texts, Options(), Settings(max_characters=2000))
    expected = "ValueError: expected an entity of whole tokens at a cut of the text, got characters"
    assert documents[0].error.startswith(f"{expected} 1995 to ")
    assert not found[0] and found[1] and documents[1].error is None


@pytest.mark.parametrize("p, is_asked", [(0.06, True), (0.5, True), (0.94, True), (0.99, False)])
def test_rank_texts_question_ending_inside_token_at_cut_sets_error(
    unsure, monkeypatch, p, is_asked
):
    measured = ranking._measure

    def crossing(nlp, pipe, batch):
        found = [[((1995, 3999, "LOC"), p)] if piece.chunk.start == 0 else [] for piece in batch]
        results = measured(nlp, pipe, batch)
        return [each._replace(candidates=own) for each, own in zip(results, found)]

    monkeypatch.setattr(ranking, "_measure", crossing)
    text = f"{'It ' * 665}See http://a.com/{'a' * 3000} came"
    options, settings = Options(unit="spans"), Settings(max_characters=2000)
    found, (document,) = rank_texts(unsure, [text], options, settings)
    expected = "ValueError: expected an entity of whole tokens at a cut of the text, got characters"
    assert found == [[]]
    assert document.error == (f"{expected} 1995 to 3999" if is_asked else None)


def test_rank_texts_sentences_of_chunked_text_have_offsets(unsure, monkeypatch):
    text = " ".join(f"Anna saw Bonn {n} now. It came to Bonn." for n in range(40))
    (whole,), _ = rank_texts(unsure, [text], Options(unit="sentences"))
    monkeypatch.setattr(ranking, "MAX_CHARACTERS", 200)
    (units,), _ = rank_texts(unsure, [text], Options(unit="sentences"))
    assert [(u.text, u.source) for u in units] == [(u.text, u.source) for u in whole]
    assert [u.source["offset"] for u in units[::2]] == [text.index(u.text) for u in units[::2]]
    (asked,), _ = rank_texts(unsure, [text], Options(unit="spans"))
    assert {u.source["offset"] for u in asked} <= {u.source["offset"] for u in units}
    assert len({u.source["offset"] for u in asked}) > 1


@pytest.mark.parametrize("bad", ["poison is in this one.", f"Anna {'x' * 7000} came to Bonn."])
@pytest.mark.parametrize("text", ["{} It came to Bonn.", "It came to Bonn. {}"])
def test_rank_texts_text_with_error_returns_no_sentences(unsure, bad, text):
    nlp = copied(unsure)
    nlp.add_pipe("fails_at_suggest", first=True)
    options, settings = Options(unit="sentences"), Settings(max_characters=2000)
    found, documents = rank_texts(
        nlp, [text.format(bad), "It came to Bonn. Anna saw it now."], options, settings
    )
    assert [len(units) for units in found] == [0, 2]
    assert documents[0].error and documents[1].error is None


def test_rank_texts_empty_texts_return_no_units(unsure):
    for unit in ("docs", "sentences", "spans"):
        found, documents = rank_texts(unsure, ["", " \n", "It"], Options(unit=unit))
        assert found[:2] == [[], []]
        assert [document.error for document in documents] == [None] * 3


def test_rank_texts_failing_text_keeps_other_texts(unsure):
    nlp = copied(unsure)
    nlp.add_pipe("fails_at_suggest", first=True)
    found, documents = rank_texts(nlp, ["It came", "poison", "Bonn"], Options())
    assert [len(units) for units in found] == [1, 0, 1]
    assert [document.error for document in documents] == [None, "RuntimeError: bad", None]
    alone, _ = rank_texts(unsure, ["It came", "Bonn"], Options())
    assert [u.score for u in only(found)] == pytest.approx([u.score for u in only(alone)], abs=1e-5)


@spacy.language.Language.component("fails_at_suggest")
def fails_at_suggest(doc):
    if "poison" in doc.text:
        raise RuntimeError("bad")
    return doc


@pytest.mark.parametrize("overwrite", [False, True])
def test_rank_texts_keeps_preset_entities_unless_overwritten(unsure, overwrite):
    nlp = copied(unsure)
    ruler = nlp.add_pipe("entity_ruler", first=True)
    ruler.add_patterns([{"label": "DATE", "pattern": "Monday"}])
    nlp.get_pipe("crf_ner").overwrite = overwrite
    text = "Anna saw Bonn Monday. " * 20
    for settings in (Settings(), Settings(max_characters=100)):
        ((unit,),), _ = rank_texts(nlp, [text], Options(), settings)
        preset = [(span, p) for span, p in unit.entities if span[2] == "DATE"]
        starts = range(14, len(text), 22) if not overwrite else []
        assert preset == [((start, start + 6, "DATE"), 1.0) for start in starts]
        spans = [span for span, _ in unit.entities]
        assert spans == sorted({*spans})
        if settings == Settings():
            assert spans == [(e.start_char, e.end_char, e.label_) for e in nlp(text).ents]
    (asked,), _ = rank_texts(nlp, [text], Options(unit="spans"))
    assert asked and all(unit.question[2] != "DATE" for unit in asked)


def test_the_interface_has_the_labels_of_earlier_components(unsure, loop, tmp_path):
    nlp = copied(unsure)
    ruler = nlp.add_pipe("entity_ruler", first=True)
    ruler.add_patterns([{"label": "DATE", "pattern": "It"}])
    nlp.to_disk(tmp_path / "model")
    out = tmp_path / "out"
    suggest(str(tmp_path / "model"), [write_corpus(tmp_path)], out, tool="label-studio")
    found = (out / "labeling.xml").read_text("utf-8")
    assert [found.count(f'<Label value="{label}"/>') for label in ("DATE", "LOC", "PER")] == [1] * 3


def test_rank_texts_spans_of_overlapping_entities_raises():
    nlp = make_overlapping()
    (units,), _ = rank_texts(nlp, ["Oslo won"], Options())
    assert {span[2] for span, _ in units[0].entities} == {"LOC", "ORG"}
    with pytest.raises(InputError, match="docs or sentences"):
        rank_texts(nlp, ["Oslo won"], Options(unit="spans"))


def write_corpus(folder):
    rows = [{"id": i, "text": text, "entities": []} for i, text in enumerate(TEXTS)]
    rows += [{"id": 90, "text": "It came"}, {"id": 91, "text": " "}, {"id": 92, "text": ""}]
    lines = [json.dumps(row) for row in rows]
    (folder / "texts.jsonl").write_text("\n".join([*lines, "", "not json", '{"id": 1}']) + "\n")
    return folder / "texts.jsonl"


def read_lines(path):
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


@pytest.mark.parametrize("shard_size", [1, 100])
@pytest.mark.parametrize("unit", ["docs", "sentences", "spans"])
def test_every_document_is_counted(model, loop, tmp_path, unit, shard_size):
    options = Options(n=5, unit=unit, random_share=0.4, budget=30)
    settings = Settings(shard_size=shard_size)
    summary = suggest(model, [write_corpus(tmp_path)], tmp_path / "out", options, settings)
    assert (summary["documents"], summary["errors"], summary["blank"]) == (12, 2, 1)
    parts = ("tasks", "sample", "duplicates", "over_budget", "over_max_per_surface", "not_chosen")
    assert summary["units"] == sum(summary[name] for name in parts)
    if unit != "spans":  # the one of two equal texts that is not chosen is a duplicate
        assert summary["empty"] == 2 and summary["units"] == 8
    tasks, sample = (read_lines(tmp_path / "out" / f"{n}.jsonl") for n in ("tasks", "sample"))
    assert (len(tasks), len(sample)) == (summary["tasks"], summary["sample"])
    assert sum(len(each["tokens"]) for each in tasks + sample) == summary["tokens"] <= 30
    scores = [task["meta"]["score"] for task in tasks]
    assert all(a >= b for a, b in pairwise(scores))
    errors = read_lines(tmp_path / "out" / "errors.jsonl")
    assert [error["line"] for error in errors] == [12, 13]
    assert json.loads((tmp_path / "out" / "summary.json").read_text()) == summary
    for task in tasks + sample:
        assert TEXTS[task["meta"]["id"]] == task["text"] or task["meta"]["id"] == 90


@pytest.mark.parametrize(
    "changes, message",
    [({"settings": Settings(max_characters=0)}, "max_characters: expected 1 or more, got 0"),
     ({"settings": Settings(batch_size=-1)}, "batch_size: expected 0 or more"),
     ({"workers": -1}, "workers: expected 0 or more, got -1"),
     ({"output": "tasks.json"}, "tasks.json: this is the name of a file"),
     ({"output": "new/tasks.JSONL"}, "Choose a name such as .*new/tasks[.]$")],
)  # fmt: skip
def test_suggest_refuses_wrong_arguments_before_any_work(
    model, monkeypatch, tmp_path, changes, message
):
    def fail(*arguments):
        raise AssertionError("a worker was started")

    monkeypatch.setattr(multiprocess, "_processes", fail)
    changes["output"] = tmp_path / changes.get("output", "out")
    with pytest.raises(InputError, match=message):
        suggest(model, [write_corpus(tmp_path)], **changes)
    assert {path.name for path in tmp_path.iterdir()} == {"texts.jsonl"}


def test_suggest_counts_the_tokens_of_the_median_task(model, loop, tmp_path):
    (tmp_path / "texts.txt").write_text("Anna\nAnna saw Bonn \x0b now\nIt came to Bonn and so on\n")
    options = Options(random_share=0)
    summary = suggest(model, [tmp_path / "texts.txt"], tmp_path / "out", options)
    assert (summary["tokens"], summary["median_tokens"]) == (1 + 5 + 7, 4)


def test_suggest_progress_matches_file_sizes(model, loop, tmp_path):
    (tmp_path / "in").mkdir()
    for name in "ab":
        (tmp_path / "in" / f"{name}.txt").write_text("".join(f"{text}\n" for text in TEXTS))
    options, settings, seen = Options(n=50, max_per_surface=0), Settings(shard_size=7), []
    inputs = [tmp_path / "in"]
    suggest(model, inputs, tmp_path / "out", options, settings, on_progress=seen.append)
    total = sum(path.stat().st_size for path in (tmp_path / "in").iterdir())
    assert [(each.size, each.total) for each in seen] == [(total // 2, total), (total, total)]
    assert [each.documents for each in seen] == [7, 14]
    words = sum(len(text.split()) for text in TEXTS)
    assert [each.words for each in seen] == [words, 2 * words]


def test_suggest_output_is_independent_of_shard_size(model, loop, tmp_path):
    outputs = []
    for shard_size in (1, 4):
        out = tmp_path / f"out{shard_size}"
        settings = Settings(shard_size=shard_size)
        suggest(model, [write_corpus(tmp_path)], out, Options(n=4, random_share=0.5), settings)
        outputs.append([[t["meta"]["task_id"] for t in read_lines(out / f"{name}.jsonl")]
                        for name in ("tasks", "sample")])  # fmt: skip
    assert outputs[0] == outputs[1]


def test_a_small_corpus_has_more_tasks_than_samples(model, loop, tmp_path):
    summary = suggest(model, [write_corpus(tmp_path)], tmp_path / "out", Options(n=200))
    assert (summary["tasks"], summary["sample"], summary["not_chosen"]) == (6, 1, 0)


@pytest.mark.parametrize("budget", [None, 10**6, 3])
@pytest.mark.parametrize("shard_size", [1, 100])
def test_units_that_the_limit_of_repeats_leaves_out_are_counted(
    model, loop, tmp_path, shard_size, budget
):
    """The only uncertain span is a number: each text has the same one."""
    (tmp_path / "texts.txt").write_text("".join(f"{n}\n" for n in range(10, 22)), "utf-8")
    settings = Settings(shard_size=shard_size)
    for n, max_per_surface, tasks, over in (
        (9, 4, 4, 8),
        (9, 0, 9, 0),
        (4, 4, 4, 0),
        (12, 0, 12, 0),
    ):
        out = tmp_path / f"{n} {max_per_surface}"
        options = Options(n=n, random_share=0, max_per_surface=max_per_surface, budget=budget)
        summary = suggest(model, [tmp_path / "texts.txt"], out, options, settings)
        chosen = min(tasks, budget or tasks)
        names = ("tasks", "over_max_per_surface", "over_budget", "not_chosen")
        expected = (chosen, over, tasks - chosen, 12 - tasks - over)
        assert tuple(summary[name] for name in names) == expected


def known_ids(model, folder, docs, unit):
    DocBin(docs=docs, store_user_data=True).to_disk(folder / "known.spacy")
    return frozenset(annotated_ids(folder / "known.spacy", unit, spacy.load(model)))


def asked_again(model, folder, docs, texts, unit):
    """The tasks about texts that remain when docs are excluded."""
    (folder / "pool.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
    tasks = []
    for name, known in (("all", frozenset()), ("rest", known_ids(model, folder, docs, unit))):
        options = Options(n=1000, unit=unit, random_share=0, max_per_surface=0, exclude=known)
        summary = suggest(model, [folder / "pool.jsonl"], folder / name, options)
        tasks.append({(t["text"], *((t["spans"][0]["start"], t["spans"][0]["end"],
                       t["spans"][0]["label"]) if unit == "spans" else ()))
                      for t in read_lines(folder / name / "tasks.jsonl")})  # fmt: skip
    assert summary["excluded"] == len(tasks[0]) - len(tasks[1])
    return tasks


def test_suggest_excludes_annotated_texts(model, unsure, loop, tmp_path):
    whole, under_key, denied = (unsure.make_doc(text) for text in TEXTS[:3])
    whole.set_ents([whole.char_span(0, 4, "PER")])
    under_key.spans["sc"] = [under_key.char_span(0, 4, "PER")]
    denied.spans[INCORRECT] = [denied[:1]]  # no annotation of the rest of the text
    # As in CoNLL, there is a space after each token.
    columns = spacy.tokens.Doc(unsure.vocab, TEXTS[5].split())
    columns.set_ents([], default="outside")
    assert columns.text == TEXTS[5] + " "
    empty = unsure.make_doc(TEXTS[6])
    empty.spans["sc"] = []
    partial = unsure.make_doc(TEXTS[3])  # spans under a key do not complete it
    partial.set_ents([], outside=[partial[:1]], default="missing")
    partial.spans["sc"] = [partial[1:2]]
    docs = [whole, under_key, denied, columns, empty, partial]
    padded = f"\n{TEXTS[0]} "
    pool, left = asked_again(model, tmp_path, docs, [padded, *TEXTS[1:]], "docs")
    assert {text for (text,) in pool - left} == {padded, TEXTS[1], TEXTS[5]}


def test_suggest_texts_differing_in_outer_whitespace_are_duplicates(model, unsure, loop, tmp_path):
    """Otherwise one text could be in the tasks and the sample: in training and evaluation."""
    texts = [f"{text}{end}" for text in TEXTS for end in ("", " ", "\n")]
    lines = (json.dumps({"text": text}) + "\n" for text in texts)
    (tmp_path / "pool.jsonl").write_text("".join(lines))
    options = Options(n=1000, unit="docs", random_share=0.3, max_per_surface=0)
    summary = suggest(model, [tmp_path / "pool.jsonl"], tmp_path / "out", options)
    different = {text.strip() for text in texts}
    asked = [
        task["text"].strip()
        for name in ("tasks", "sample")
        for task in read_lines(tmp_path / "out" / f"{name}.jsonl")
    ]
    assert summary["sample"] and sorted(asked) == sorted(different)
    assert summary["duplicates"] == len(texts) - len(different)


@pytest.mark.parametrize("unit", ["docs", "sentences", "spans"])
def test_annotated_ids_uses_incorrect_spans_key_of_component(unit, model, unsure, tmp_path):
    doc = unsure.make_doc(TEXTS[0])
    doc.spans["neg"] = [Span(doc, 0, 1, "LOC")]
    DocBin(docs=[doc]).to_disk(tmp_path / "a.spacy")
    doc.spans[INCORRECT] = doc.spans.pop("neg")
    DocBin(docs=[doc]).to_disk(tmp_path / "b.spacy")
    asked = {"components.crf_ner.incorrect_spans_key": "neg"}
    found = [
        set(annotated_ids(tmp_path / f"{name}.spacy", unit, spacy.load(model, config=config)))
        for name, config in (("a", asked), ("b", {}))
    ]
    assert found[0] == found[1] and bool(found[0]) == (unit == "spans")


def test_suggest_excludes_annotated_sentences(model, unsure, loop, tmp_path):
    whole = unsure.make_doc("\nAnna saw Bonn now. \n\n It came to Bonn! Bonn came")
    whole.set_ents([whole[1:2]], default="outside")
    for token in whole[1:]:
        token.is_sent_start = False  # the pool is divided without the sentences of the corpus
    partial = unsure.make_doc("Zoë came to Bonn. Anna came to Bonn.")
    partial.set_ents([], outside=[partial[:5]], default="missing")
    words = ["Bonn", "saw", "it", "and", "No.", "It", "saw", "it", "and", "Anna", "."]  # "." too
    tokens = spacy.tokens.Doc(unsure.vocab, words)
    tokens.set_ents([], default="outside")
    pool = ["Anna saw Bonn now. Bonn saw Anna now.", "It came to Bonn!", "Bonn came"]
    pool += ["Zoë came to Bonn. Anna came to Bonn.", "Bonn saw it and No. It saw it and Anna ."]
    docs = [whole, partial, tokens]
    _, left = asked_again(model, tmp_path, docs, pool, "sentences")
    assert left == {("Bonn saw Anna now.",), ("Anna came to Bonn.",)}


def test_annotated_ids_empty_group_counts_under_key_of_component(tmp_path):
    nlp = spacy.blank("en")
    for name in ("a", "b"):
        nlp.add_pipe("crf_ner", name, config={"overlap": True, "spans_key": name})
    docs = [nlp.make_doc(text) for text in ("It came", "Bonn", "So")]
    docs[0].spans["a"], docs[1].spans["b"], docs[2].spans["other"] = [], [], []
    DocBin(docs=docs).to_disk(tmp_path / "known.spacy")
    for name, text in (("a", "It came"), ("b", "Bonn")):
        found = {*annotated_ids(tmp_path / "known.spacy", "docs", nlp, name)}
        assert found == {identify(text)}


def test_suggest_excludes_sentences_split_by_pipeline_tokenizer(model, unsure, loop, tmp_path):
    text = "Mr. Smith saw Mt. Bonn now. It came to Bonn."
    whole = spacy.blank("xx").make_doc(text)
    assert [token.text for token in whole[:2]] == ["Mr", "."] and unsure(text)[0].text == "Mr."
    whole.set_ents([], default="outside")
    pool, left = asked_again(model, tmp_path, [whole], [text], "sentences")
    assert pool == {("Mr. Smith saw Mt. Bonn now.",), ("It came to Bonn.",)} and not left


def test_is_excluded_sentences_of_doc_with_other_tokens_returns_true(model, unsure, tmp_path):
    """A pool of Docs is divided by their own tokens."""
    doc = spacy.blank("xx").make_doc("So I saw a Mr. Smith saw Bonn now. It came to Bonn.")
    (units,), _ = rank_texts(unsure, [doc.to_bytes()], Options(unit="sentences"))
    assert [unit.text for unit in units] == [
        "So I saw a Mr.",
        "Smith saw Bonn now.",
        "It came to Bonn.",
    ]
    doc.set_ents([], default="outside")
    known = known_ids(model, tmp_path, [doc], "sentences")
    assert all(is_excluded(unit, known) for unit in units)


def test_suggest_excludes_answered_questions(model, unsure, loop, tmp_path):
    text = "Élan 🙂 Bonn"
    pool = [text, "Anna saw Bonn", "Bonn came"]
    yes, no = unsure.make_doc(f"It came. {text}"), unsure.make_doc(text)
    yes.set_ents([yes.char_span(16, 20, "LOC")], default="missing")
    no.spans[INCORRECT] = [no.char_span(0, 4, "PER"), no.char_span(5, 6, "")]
    whole = unsure.make_doc("Bonn came")
    whole.set_ents([], default="outside")
    questions, left = asked_again(model, tmp_path, [yes, no, whole], pool, "spans")
    assert {q[0] for q in questions} == {*pool}
    of_text = {q for q in questions if q[0] == text}
    assert of_text == {(text, *at, label) for at in ((0, 4), (5, 6), (7, 11)) for label in LABELS}
    assert left - of_text == {q for q in questions if q[0] == "Anna saw Bonn"}
    assert left & of_text == {(text, 0, 4, "LOC")}


@pytest.mark.parametrize(
    "question, excluded",
    [
        ((9, 13, "PER"), True),
        ((5, 13, "LOC"), True),
        ((0, 13, "PER"), True),
        ((0, 8, "LOC"), False),
        ((5, 8, "LOC"), False),
    ],
)
def test_is_excluded_span_with_annotated_token_returns_true(
    model, unsure, tmp_path, question, excluded
):
    """At any position of the token, since entities do not overlap."""
    doc = unsure.make_doc("Anna saw Bonn")
    doc.set_ents([doc.char_span(9, 13, "LOC")], default="missing")
    known = known_ids(model, tmp_path, [doc], "spans")
    unit = Unit(identify(doc.text, question), doc.text, [], [], 0.0, "", {}, question)
    assert is_excluded(unit, known) == excluded


def test_suggest_asks_about_labels_not_annotated_in_text(model, unsure, loop, tmp_path):
    text = "Anna saw Bonn"
    some, every = unsure.make_doc(text), unsure.make_doc("It came")
    some.set_ents([some.char_span(0, 4, "PER")], default="outside")
    some.spans[INCORRECT] = [some.char_span(9, 13, "LOC")]
    every.set_ents([], default="outside")
    mark_annotated_labels(some, ["PER", "ORG"])
    mark_annotated_labels(every, [*LABELS, "ORG"])
    for unit in ("docs", "sentences"):
        (tmp_path / unit).mkdir()
        _, left = asked_again(model, tmp_path / unit, [some, every], [text, "It came"], unit)
        assert left == {(text,)}
    questions, left = asked_again(model, tmp_path, [some, every], [text], "spans")
    assert {(text, *at, label) for at in ((5, 8), (9, 13)) for label in LABELS} <= questions
    assert left == {q for q in questions if q[1] > 4 and q[3] == "LOC"} - {(text, 9, 13, "LOC")}
    assert left


@pytest.mark.parametrize(
    "tool, value, expected",
    [
        ("jsonl", datetime(2020, 1, 2, tzinfo=UTC), "2020-01-02T00:00:00+00:00"),
        ("jsonl", Decimal("1.50"), "1.50"),
        ("jsonl", b"ab\xff", "YWL/"),
        ("jsonl", math.nan, None),
        ("jsonl", {"day": datetime(2020, 1, 2)}, {"day": "2020-01-02T00:00:00"}),
        ("label-studio", math.nan, None),
        ("label-studio", {"day": datetime(2020, 1, 2)}, {"day": "2020-01-02T00:00:00"}),
        ("doccano", math.nan, None),
        ("doccano", {"day": datetime(2020, 1, 2)}, {"day": "2020-01-02T00:00:00"}),
    ],
)
def test_suggest_writes_non_json_ids_as_text(model, loop, tmp_path, tool, value, expected):
    table = pyarrow.table({"text": ["It came", "Bonn", f"x{'x' * 7000}"], "id": [value] * 3})
    parquet.write_table(table, tmp_path / "texts.parquet")
    settings = Settings(max_characters=2000)
    inputs = [tmp_path / "texts.parquet"]
    suggest(model, inputs, tmp_path / "out", Options(n=2, random_share=0.5), settings, tool=tool)
    suffix = "json" if tool == "label-studio" else "jsonl"
    tasks, sample = (
        (tmp_path / "out" / f"{name}.{suffix}").read_text("utf-8") for name in ("tasks", "sample")
    )
    assert "NaN" not in tasks
    for content in (tasks, sample):
        (task,) = json.loads(content) if suffix == "json" else [json.loads(content)]
        meta = task.get("meta") or task.get("data") or {"id": task.get("source_id")}
        assert meta["id"] == expected
    (error,) = read_lines(tmp_path / "out" / "errors.jsonl")
    assert error["id"] == expected


def test_suggest_dead_worker_raises(model, loop, tmp_path, monkeypatch):
    def dead(*arguments, **others):
        raise BrokenProcessPool("killed")

    monkeypatch.setattr(suggestion, "_rank_shard", dead)
    with pytest.raises(WorkerError, match="killed"):
        suggest(model, [write_corpus(tmp_path)], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_identify_is_stable_across_runs():
    assert identify("Bonn 🙂") == "4639f237310e49fd"
    assert identify("Bonn") != identify("Bonn", (0, 4, "LOC")) != identify("Bonn", (0, 4, "PER"))
    assert identify("half \ud83d") == identify("half \ud83d")


@pytest.mark.parametrize(
    "options, tool",
    [
        (Options(unit="words"), "jsonl"),
        (Options(strategy="best"), "jsonl"),
        (Options(n=0), "jsonl"),
        (Options(random_share=1.5), "jsonl"),
        (Options(budget=0), "jsonl"),
        (Options(max_per_surface=-1), "jsonl"),
        (Options(), "paper"),
        (Options(unit="spans"), "doccano"),
    ],
)
def test_suggest_invalid_options_raise(model, tmp_path, options, tool):
    with pytest.raises(InputError, match="expected"):
        suggest(model, [write_corpus(tmp_path)], tmp_path / "out", options, tool=tool)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_suggest_two_processes_match_one_process(model, tmp_path):
    found = []
    for workers in (1, 2):
        out = tmp_path / f"out{workers}"
        settings = Settings(shard_size=2)
        suggest(model, [write_corpus(tmp_path)], out, Options(n=4), settings, workers=workers)
        found.append([task["meta"]["task_id"] for task in read_lines(out / "tasks.jsonl")])
    assert found[0] == found[1]
