//! docs/messages.md lists every message at WARN or ERROR, and no other.

use std::collections::BTreeSet;

use proc_macro2::{TokenStream, TokenTree};

use crate::tree::{files, read, root, rows};

/// Sources whose log an operator reads.
const SOURCES: [&str; 6] = [
    "csi-core/src",
    "csi-mount/src",
    "kubernetes/csi-controllers/src",
    "kubernetes/csi-kube/src",
    "examples/hostpath/src",
    "examples/nfs/src",
];

/// The text of a message: the last literal on the top level of the macro's arguments, before the arguments of
/// the text itself.
fn message(arguments: TokenStream) -> Option<String> {
    let mut after_comma = true;
    for tree in arguments {
        match tree {
            TokenTree::Literal(literal) if after_comma => match syn::Lit::new(literal) {
                syn::Lit::Str(text) => return Some(text.value()),
                _ => after_comma = false,
            },
            TokenTree::Punct(one) => after_comma = one.as_char() == ',',
            _ => after_comma = false,
        }
    }
    None
}

/// The messages of `warn!` and `error!` in these tokens.
fn messages(tokens: TokenStream, found: &mut BTreeSet<String>) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    for (at, tree) in tokens.iter().enumerate() {
        let TokenTree::Group(group) = tree else { continue };
        let is_log = match tokens[..at] {
            [.., TokenTree::Ident(ref name), TokenTree::Punct(ref bang)] => {
                bang.as_char() == '!' && (name == "warn" || name == "error")
            }
            _ => false,
        };
        match is_log.then(|| message(group.stream())) {
            Some(Some(text)) => drop(found.insert(text)),
            Some(None) => panic!("a message without a text: {group}"),
            None => messages(group.stream(), found),
        }
    }
}

#[test]
fn every_warning_is_in_the_index() {
    let mut logged = BTreeSet::new();
    for file in SOURCES.iter().flat_map(|folder| files(folder, "rs")) {
        messages(read(file).parse().expect("Rust"), &mut logged);
    }
    assert!(logged.len() > 40, "only {} messages were found", logged.len());
    let rows = rows(&read("docs/messages.md"), "| message |");
    let listed: BTreeSet<String> =
        rows.iter().filter_map(|row| row[0].split('`').nth(1)).map(str::to_owned).collect();
    let missing: Vec<_> = logged.difference(&listed).collect();
    let stale: Vec<_> = listed.difference(&logged).collect();
    assert!(missing.is_empty(), "docs/messages.md lacks {missing:#?}");
    assert!(stale.is_empty(), "no source has {stale:#?}");
    for row in rows {
        assert_eq!(row.len(), 4, "{row:?}");
    }
}

#[test]
fn messages_are_found_in_every_form() {
    let source = r#"
        fn f() {
            tracing::warn!("plain");
            warn!(at = %path("field"), "after fields \
                   on two lines");
            match x { _ => tracing::error!(code = ?c, "{text}"), }
            tracing::info!("not this");
            error!("with {}", argument("inner"));
        }"#;
    let mut found = BTreeSet::new();
    messages(source.parse().expect("Rust"), &mut found);
    let due = ["after fields on two lines", "plain", "with {}", "{text}"];
    assert_eq!(found.iter().map(String::as_str).collect::<Vec<_>>(), due);
}

/// Fields of other things than requests, which an error names too: flags, text that is parsed on its own, and
/// the key of a record.
const NOT_OF_A_REQUEST: [&str; 5] = ["socket removal", "mode", "spec", "quantity", "id"];

/// The fields that the errors of these tokens name: the first literal in the arguments of `invalid`.
fn named_fields(tokens: TokenStream, found: &mut BTreeSet<String>) {
    let mut is_invalid = false;
    for tree in tokens {
        if let TokenTree::Group(group) = &tree {
            let mut arguments = group.stream().into_iter();
            match (is_invalid, arguments.next(), arguments.next(), arguments.next()) {
                (true, Some(TokenTree::Literal(text)), ..) => drop(found.insert(text.to_string())),
                (true, Some(TokenTree::Ident(format)), Some(_), Some(TokenTree::Group(inner)))
                    if format == "format" =>
                {
                    found.extend(inner.stream().into_iter().next().map(|text| text.to_string()));
                }
                _ => {}
            }
            named_fields(group.stream(), found);
        }
        is_invalid = matches!(&tree, TokenTree::Ident(name) if name == "invalid");
    }
}

/// The path of a field without indices and keys, which can hold any character.
fn without_keys(field: &str) -> String {
    let parts = field.split('[').enumerate();
    parts
        .map(|(at, part)| if at == 0 { part } else { part.split_once(']').map_or("", |(_, rest)| rest) })
        .collect()
}

/// Whether the path leads to a field of the message.
fn has_field(message: &prost_reflect::MessageDescriptor, path: &str) -> bool {
    let (first, rest) = path.split_once('.').map_or((path, None), |(first, rest)| (first, Some(rest)));
    let Some(field) = message.get_field_by_name(first) else { return false };
    match (rest, field.kind()) {
        (None, _) => true,
        (Some(rest), prost_reflect::Kind::Message(inner)) => has_field(&inner, rest),
        _ => false,
    }
}

#[test]
fn errors_name_the_fields_of_requests() {
    let mut compiler = protox::Compiler::new([root().join("csi-proto/proto")]).expect("the folder");
    compiler.include_imports(true);
    compiler.open_file("csi.proto").expect("the spec's file");
    let encoded = compiler.encode_file_descriptor_set();
    let pool = prost_reflect::DescriptorPool::decode(encoded.as_slice()).expect("complete");
    let requests: Vec<_> =
        pool.all_messages().filter(|message| message.name().ends_with("Request")).collect();
    let mut wrong = Vec::new();
    let mut count = 0;
    for folder in ["csi-core/src", "examples", "tools/csi-cli/templates"] {
        let files = files(folder, "rs");
        for file in files.iter().filter(|file| !file.components().any(|part| part.as_os_str() == "tests")) {
            let Ok(tokens) = read(file).parse::<TokenStream>() else { continue };
            let mut fields = BTreeSet::new();
            named_fields(tokens, &mut fields);
            for field in fields {
                let field = field.trim_matches('"');
                let is_composed = field.is_empty() || field.starts_with('{');
                if is_composed || field.starts_with("--") || NOT_OF_A_REQUEST.contains(&field) {
                    continue;
                }
                count += 1;
                if !requests.iter().any(|request| has_field(request, &without_keys(field))) {
                    wrong.push(format!("{}: {field}", file.display()));
                }
            }
        }
    }
    assert!(count > 20, "{count} fields are found");
    assert!(wrong.is_empty(), "no request has these fields:\n{}", wrong.join("\n"));
}
