//! The templates: for each kind of storage its files, and what its projects can leave out.

use clap::{Arg, ArgAction, ArgMatches};
use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, UndefinedBehavior, Value};

/// What the storage gives to a node.
#[derive(Debug)]
pub(super) struct Template {
    pub(super) name: &'static str,
    pub(super) about: &'static str,
    /// The path of each file in the project, and the template of its text.
    files: &'static [(&'static str, &'static str)],
}

/// What all templates with it have, unless its flag is given.
#[derive(Debug)]
pub(super) struct Choice {
    /// The variable in the templates.
    variable: &'static str,
    pub(super) flag: &'static str,
    help: &'static str,
    templates: &'static [&'static str],
}

macro_rules! text {
    ($($path:literal),+) => {
        include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/templates/", $($path),+))
    };
}

/// The files that every project has.
const COMMON: &[(&str, &str)] = &[
    (".containerignore", text!("containerignore")),
    (".github/workflows/ci.yml", text!("ci.yml")),
    (".gitignore", text!("gitignore")),
    ("Cargo.toml", text!("Cargo.toml.jinja")),
    ("Containerfile", text!("Containerfile")),
    ("README.md", text!("README.md.jinja")),
    ("rustfmt.toml", text!("rustfmt.toml")),
    ("src/main.rs", text!("main.rs")),
];

macro_rules! files {
    ($kind:literal) => {
        &[
            ("src/lib.rs", text!($kind, "/lib.rs")),
            ("tests/kit.rs", text!("kit.rs")),
            ("tests/life.rs", text!($kind, "/life.rs")),
        ]
    };
}

pub(super) const TEMPLATES: [Template; 6] = [
    Template { name: "directory", about: "a directory that exists on the node", files: files!("directory") },
    Template { name: "block", about: "a block device that the node attaches", files: files!("block") },
    Template {
        name: "attached",
        about: "a disk that a cloud's API attaches to the node",
        files: &[
            ("src/cloud.rs", text!("attached/cloud.rs")),
            ("src/lib.rs", text!("attached/lib.rs")),
            ("tests/fake/mod.rs", text!("attached/fake.rs")),
            ("tests/kit.rs", text!("attached/kit.rs")),
            ("tests/life.rs", text!("attached/life.rs")),
        ],
    },
    Template { name: "shared", about: "a filesystem of a server", files: files!("shared") },
    Template { name: "fuse", about: "a FUSE program", files: files!("fuse") },
    Template { name: "ephemeral", about: "files, made for one pod", files: files!("ephemeral") },
];

pub(super) const CHOICES: [Choice; 5] = [
    Choice {
        variable: "multi_writer",
        flag: "no-multi-writer",
        help: "Several pods of one node can't write to a volume (no SINGLE_NODE_MULTI_WRITER)",
        templates: &["directory", "block", "attached", "shared", "fuse"],
    },
    Choice {
        variable: "local",
        flag: "no-local",
        help: "Every node has the same directories (no VOLUME_ACCESSIBILITY_CONSTRAINTS)",
        templates: &["directory"],
    },
    Choice {
        variable: "expand",
        flag: "no-expand",
        help: "Volumes can't grow (no EXPAND_VOLUME)",
        templates: &["block", "attached"],
    },
    Choice {
        variable: "stage",
        flag: "no-stage",
        help: "A volume is mounted once for each pod, not once for each node (no STAGE_UNSTAGE_VOLUME)",
        templates: &["shared"],
    },
    Choice {
        variable: "renew",
        flag: "no-renew",
        help: "The kubelet does not ask for new files from time to time (no requiresRepublish)",
        templates: &["ephemeral"],
    },
];

impl Choice {
    pub(super) fn argument(&self) -> Arg {
        let help = format!("{} [templates: {}]", self.help, self.templates.join(", "));
        Arg::new(self.flag).long(self.flag).action(ArgAction::SetTrue).help(help)
    }
}

impl Template {
    /// The template with this name.
    pub(super) fn named(name: &str) -> Option<&'static Self> {
        TEMPLATES.iter().find(|template| template.name == name)
    }

    /// What a project of this template can leave out.
    pub(super) fn choices(&self) -> impl Iterator<Item = &'static Choice> {
        CHOICES.iter().filter(|choice| choice.templates.contains(&self.name))
    }

    /// What the flags choose, as variables of the templates.
    ///
    /// # Errors
    /// When a flag is for other templates.
    pub(super) fn chosen(&self, matches: &ArgMatches) -> Result<Vec<(&'static str, Value)>, String> {
        let given = CHOICES.iter().filter(|choice| matches.get_flag(choice.flag));
        for Choice { flag, templates, .. } in given {
            if !templates.contains(&self.name) {
                let own: Vec<String> = self.choices().map(|own| format!("--{}", own.flag)).collect();
                return Err(format!(
                    "--{flag} is for --template {}; {} has {}",
                    templates.join(" or "),
                    self.name,
                    own.join(" and "),
                ));
            }
        }
        Ok(self.choices().map(|own| (own.variable, Value::from(!matches.get_flag(own.flag)))).collect())
    }

    /// The files of a project: each one's path, and its text with these variables.
    pub(super) fn render(&self, variables: &Value) -> Vec<(&'static str, String)> {
        // A line that has only a block tag leaves no line.
        let syntax =
            SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).keep_trailing_newline(true).build();
        let mut jinja = Environment::new();
        jinja.set_syntax(syntax.unwrap_or_else(|error| panic!("the default delimiters: {error}")));
        jinja.set_undefined_behavior(UndefinedBehavior::Strict);
        let text = |path: &str, source: &str| {
            // The templates are a part of this program, and tests render all of them.
            jinja.render_str(source, variables).unwrap_or_else(|error| panic!("{path}: {error:#}"))
        };
        let files = COMMON.iter().chain(self.files);
        files.map(|(path, source)| (*path, text(path, source))).collect()
    }
}
