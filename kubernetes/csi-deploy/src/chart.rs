//! The Helm chart: the same objects, with expressions of Helm in the places of the chart's values.
//!
//! The default of each value is taken out of the object that it belongs to. So with the default values the chart
//! gives the objects of the manifests.

use std::fs;
use std::io;
use std::path::Path;

use serde_json::{Value, json};

use crate::error::Error;
use crate::files::{Document, MARKER, yaml};
use crate::objects;
use crate::options::{Controller, Options};
use crate::plan::{COMPONENT, Plan};

/// Marks the files of a chart that this crate writes.
pub(crate) const HEAD: &str =
    "# Made from the driver's capabilities. Change the flags; give other values to Helm with -f or --set.\n";
/// The character around expressions in texts of the objects: no flag can contain it.
const QUOTE: char = '\0';
/// The variable by which csi-core's flags take a level.
const LOG_LEVEL: &str = "RUST_LOG";
const REPLICATED: &str = "if gt (int .Values.controller.replicas) 1";

/// Returns the files of the chart by their paths in its directory, `Chart.yaml` first.
pub(crate) fn files(plan: &Plan<'_>) -> Result<Vec<(String, String)>, Error> {
    let options = plan.options;
    // With a host path and no election the manifests refuse a second replica.
    let scales = plan.has_controller_pods()
        && options.controller == Controller::Deployment
        && (options.controller_host_path.is_empty() || options.driver_elects);
    let mut with_expressions = Options {
        namespace: text_of(".Release.Namespace"),
        kubelet_dir: text_of(".Values.kubeletDir"),
        ..options.clone()
    };
    if scales {
        // What several replicas need is in the chart, under a condition.
        with_expressions.replicas = options.replicas.max(2);
    }
    let mut chart = Chart {
        values: json!({ "kubeletDir": options.kubelet_dir }),
        scales,
        has_log_level: !options.classic && !sets_log_level(options),
        expressions: Vec::new(),
    };
    let template_plan = Plan { driver: plan.driver, options: &with_expressions, name: plan.name.clone() };
    let mut files = Vec::new();
    for (name, documents) in objects::all(&template_plan).0 {
        // Helm stores the release in the namespace before it makes any object.
        let is_made = |document: &Document| name != "namespace.yaml" || document.kind != "Namespace";
        let documents = documents.into_iter().filter(is_made);
        let texts = documents.map(|document| chart.template(document)).collect::<Result<Vec<_>, _>>()?;
        if !texts.is_empty() {
            files.push((format!("templates/{name}"), HEAD.to_owned() + &texts.join(MARKER)));
        }
    }
    if scales {
        chart.values["controller"]["replicas"] = options.replicas.into();
    }
    let version = version(&options.image);
    let mut about = json!({
        "apiVersion": "v2",
        "name": plan.name,
        "description": format!("The CSI driver {}", plan.driver.name),
        "type": "application",
        "version": version.unwrap_or("0.1.0"),
    });
    if let Some(version) = version {
        about["appVersion"] = version.into();
    }
    let about = yaml("Chart", &about)?;
    let values = yaml("values", &chart.values)?;
    let first = [("Chart.yaml", about), ("values.yaml", values)];
    Ok(first
        .map(|(name, text)| (name.to_owned(), HEAD.to_owned() + &text))
        .into_iter()
        .chain(files)
        .collect())
}

/// Writes these files, and removes the templates of an earlier chart that are not among them.
pub(crate) fn write(files: &[(String, String)], directory: &Path) -> Result<(), Error> {
    check_directory(files, directory)?;
    let templates = directory.join("templates");
    fs::create_dir_all(&templates).map_err(failed(&templates))?;
    for entry in fs::read_dir(&templates).map_err(failed(&templates))? {
        let path = entry.map_err(failed(&templates))?.path();
        if path.is_file() && fs::read(&path).map_err(failed(&path))?.starts_with(HEAD.as_bytes()) {
            fs::remove_file(&path).map_err(failed(&path))?;
        }
    }
    for (name, text) in files {
        let path = directory.join(name);
        fs::write(&path, text).map_err(failed(&path))?;
    }
    Ok(())
}

/// Refuses a directory with files that has no chart of the same name, written by this crate.
fn check_directory(files: &[(String, String)], directory: &Path) -> Result<(), Error> {
    let is_empty = match fs::read_dir(directory) {
        Ok(mut entries) => entries.next().is_none(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => true,
        Err(error) => return Err(failed(directory)(error)),
    };
    let name = |about: &str| about.lines().find(|line| line.starts_with("name: ")).map(str::to_owned);
    let is_same = |about: &str| {
        about.starts_with(HEAD) && files.first().is_some_and(|(_, own)| name(own) == name(about))
    };
    if is_empty || fs::read_to_string(directory.join("Chart.yaml")).is_ok_and(|about| is_same(&about)) {
        return Ok(());
    }
    let reason = format!(
        "{} is not empty, and has no chart of this driver that was made from its capabilities: give another directory",
        directory.display()
    );
    Err(Error::invalid("chart", reason))
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    |source| Error::Io { path, source }
}

/// Whether the flags set the variable of the level.
fn sets_log_level(options: &Options) -> bool {
    let plain = options.env.iter().map(|(name, _)| name);
    plain.chain(options.secret_env.iter().map(|variable| &variable.name)).any(|name| name == LOG_LEVEL)
}

/// The version in the tag of an image, if it is one of SemVer without an addition.
fn version(image: &str) -> Option<&str> {
    let (_, tag) = image.split('@').next()?.rsplit_once(':')?;
    let version = tag.strip_prefix('v').unwrap_or(tag);
    let is_number = |part: &str| part.parse::<u32>().is_ok_and(|number| number.to_string() == part);
    (version.split('.').count() == 3 && version.split('.').all(is_number)).then_some(version)
}

fn text_of(expression: &str) -> String {
    format!("{QUOTE}{expression}{QUOTE}")
}

/// Text of a template in place of a value.
struct Expression {
    /// The action that decides whether the line with the value exists.
    condition: Option<String>,
    text: String,
}

struct Chart {
    values: Value,
    /// Whether the number of replicas is a value.
    scales: bool,
    has_log_level: bool,
    expressions: Vec<Expression>,
}

impl Chart {
    fn template(&mut self, mut document: Document) -> Result<String, Error> {
        self.expressions.clear();
        match document.kind {
            "DaemonSet" | "Deployment" | "StatefulSet" => self.workload(&mut document.object["spec"]),
            "PodTemplate" => self.workload(&mut document.object),
            _ => {}
        }
        self.texts(&mut document.object);
        let plain = document.text()?.replace("{{", r#"{{ "{{" }}"#);
        let mut template: String = plain.lines().map(|line| self.line(line)).collect();
        if document.kind == "PodDisruptionBudget" {
            template = format!("{{{{- {REPLICATED} }}}}\n{template}{{{{- end }}}}\n");
        }
        Ok(template)
    }

    /// A line with its expression, if it has one.
    fn line(&self, line: &str) -> String {
        // As YAML has it in quotes.
        let mark = line.strip_suffix(r#"\0""#).and_then(|line| line.rsplit_once(r#""\0"#));
        let Some((begin, index)) = mark else { return format!("{line}\n") };
        let Some(Expression { condition, text }) =
            index.parse().ok().and_then(|index: usize| self.expressions.get(index))
        else {
            return format!("{line}\n");
        };
        match condition {
            None => format!("{begin}{text}\n"),
            Some(condition) => format!("{{{{- {condition} }}}}\n{begin}{text}\n{{{{- end }}}}\n"),
        }
    }

    /// Returns what stands for an expression until the object is YAML.
    fn expression(&mut self, condition: Option<String>, text: String) -> Value {
        self.expressions.push(Expression { condition, text });
        mark(self.expressions.len() - 1).into()
    }

    /// Moves a field into the values; `absent` is the value of a field that does not exist.
    fn take(&mut self, object: &mut Value, field: &str, path: &[&str], absent: Value) {
        let value = format!(".Values.{}", path.join("."));
        let default = object.get_mut(field).map(Value::take);
        object[field] = match default {
            Some(_) => self.expression(None, format!("{{{{ toJson {value} }}}}")),
            None => self.expression(Some(format!("with {value}")), "{{ toJson . }}".to_owned()),
        };
        let place = path.iter().fold(&mut self.values, |at, key| &mut at[*key]);
        *place = default.unwrap_or(absent);
    }

    fn workload(&mut self, spec: &mut Value) {
        let component =
            spec["template"]["metadata"]["labels"][COMPONENT].as_str().unwrap_or_default().to_owned();
        // FUSE programs run on the nodes of the driver.
        let part = if component == "fuse" { "node" } else { &component };
        if self.scales && part == "controller" {
            self.take(spec, "replicas", &[part, "replicas"], Value::Null);
        }
        let pod = &mut spec["template"]["spec"];
        for field in ["affinity", "nodeSelector", "tolerations"] {
            self.take(pod, field, &[part, field], json!({}));
        }
        self.take(pod, "priorityClassName", &[&component, "priorityClassName"], json!({}));
        self.take(pod, "imagePullSecrets", &["imagePullSecrets"], json!([]));
        if let Some(spread) = pod.get_mut("topologySpreadConstraints") {
            let text = spread.take().to_string();
            *spread = self.expression(Some(REPLICATED.to_owned()), text);
        }
        // The program that the init container copies is the driver's.
        for container in pod.get_mut("initContainers").and_then(Value::as_array_mut).into_iter().flatten() {
            self.take(container, "image", &["images", "driver"], Value::Null);
        }
        for container in pod["containers"].as_array_mut().into_iter().flatten() {
            let name = camel_case(container["name"].as_str().unwrap_or_default());
            self.take(container, "image", &["images", &name], Value::Null);
            self.take(container, "resources", &[part, "resources", &name], Value::Null);
            if name == "driver" && self.has_log_level {
                self.log_level(container);
            }
        }
    }

    fn log_level(&mut self, driver: &mut Value) {
        self.values["logLevel"] = "".into();
        let condition = Some("with .Values.logLevel".to_owned());
        let variable = format!(r#"{{"name": "{LOG_LEVEL}", "value": {{{{ toJson . }}}}}}"#);
        match driver.get_mut("env").and_then(Value::as_array_mut) {
            Some(variables) => variables.push(self.expression(condition, variable)),
            None => driver["env"] = self.expression(condition, format!("[{variable}]")),
        }
    }

    /// Replaces each text that contains an expression.
    fn texts(&mut self, value: &mut Value) {
        match value {
            Value::String(text) if text.starts_with(QUOTE) && is_mark(text) => {}
            Value::String(text) if text.contains(QUOTE) => {
                let parts = text.split(QUOTE).enumerate().filter(|(_, part)| !part.is_empty());
                let parts = parts.map(|(index, part)| match index % 2 {
                    // Go reads JSON's text as its own.
                    0 => Value::from(part).to_string(),
                    _ => part.to_owned(),
                });
                let parts: Vec<String> = parts.collect();
                *value = self.expression(None, format!("{{{{ print {} | toJson }}}}", parts.join(" ")));
            }
            Value::Array(values) => values.iter_mut().for_each(|value| self.texts(value)),
            Value::Object(fields) => fields.values_mut().for_each(|value| self.texts(value)),
            _ => {}
        }
    }
}

fn mark(index: usize) -> String {
    format!("{QUOTE}{index}{QUOTE}")
}

fn is_mark(text: &str) -> bool {
    text.trim_matches(QUOTE).parse::<usize>().is_ok()
}

/// The name of a container as a name that an expression can have.
fn camel_case(name: &str) -> String {
    let mut words = name.split('-');
    let first = words.next().unwrap_or_default().to_owned();
    words.fold(first, |name, word| {
        let (initial, rest) = word.split_at(word.len().min(1));
        name + &initial.to_ascii_uppercase() + rest
    })
}
