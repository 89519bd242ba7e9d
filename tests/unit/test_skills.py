"""Skills of a client, as the model is told of them: a tree for each folder, in the wire's shape."""

from shared.domain.agents import ClientSkill, with_skills


def test_without_skills_the_instructions_stay() -> None:
    assert with_skills("Be kind.\n", []) == "Be kind.\n"


def test_a_tree_for_each_folder() -> None:
    skills = [
        ClientSkill("pdf", "Reads PDFs.\nAt length.", "/home/ada/skills/pdf/SKILL.md"),
        ClientSkill("csv", "", "/home/ada/skills/csv/SKILL.md"),
        ClientSkill("odd", "Lies elsewhere.", "/srv/notes/odd.md"),
        ClientSkill("loose", "Has no place."),
        ClientSkill("pdf", "Comes too late.", "/elsewhere/pdf/SKILL.md"),
    ]
    assert with_skills("Be kind.\n", skills) == "\n".join(
        [
            "Be kind.",
            "",
            "<available_skills>",
            "${MEMORY_DIR}/skills",
            "└── loose/",
            "    └── SKILL.md (Has no place.)",
            "",
            "/home/ada/skills",
            "├── csv/",
            "│   └── SKILL.md",
            "└── pdf/",
            "    └── SKILL.md (Reads PDFs.)",
            "",
            "/srv/notes",
            "└── odd.md (Lies elsewhere.)",
            "</available_skills>",
        ]
    )
