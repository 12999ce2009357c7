//! Items as text on one line, the same however the source is formatted.

use std::fmt;

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use quote::ToTokens;
use syn::{Attribute, Fields, FnArg, Pat, Signature};

/// The attributes that callers have to know.
pub(crate) struct Marks<'a>(pub(crate) &'a [Attribute]);

impl fmt::Display for Marks<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for attribute in self.0 {
            let meta = text(&attribute.meta);
            if attribute.path().is_ident("cfg") || ["non_exhaustive", "doc(hidden)"].contains(&&*meta) {
                write!(f, " #[{meta}]")?;
            } else if attribute.path().is_ident("deprecated") {
                write!(f, " #[deprecated]")?;
            }
        }
        Ok(())
    }
}

/// A function without its body. Whether it changes an argument in its own scope (`mut`) is left out.
pub(crate) fn function(path: &str, signature: &Signature) -> String {
    let Signature { constness, asyncness, unsafety, abi, .. } = signature;
    let words = [text(constness), text(asyncness), text(unsafety), text(abi)];
    let words: String = words.iter().filter(|word| !word.is_empty()).map(|word| format!("{word} ")).collect();
    let inputs = signature.inputs.iter().map(|input| match input.clone() {
        FnArg::Receiver(mut receiver) => {
            if receiver.reference.is_none() {
                receiver.mutability = None;
            }
            text(&receiver)
        }
        FnArg::Typed(mut typed) => {
            if let Pat::Ident(name) = &mut *typed.pat {
                name.mutability = None;
            }
            text(&typed)
        }
    });
    let inputs: Vec<_> = inputs.collect();
    let generics = text(&signature.generics);
    let output = text(&signature.output);
    let bounds = text(&signature.generics.where_clause);
    let space = if output.is_empty() { "" } else { " " };
    format!("{words}fn {path}{generics}({}){space}{output}{bounds}", inputs.join(", "))
}

/// The fields of a variant, with their types.
pub(crate) fn fields_text(fields: &Fields) -> String {
    let each = fields.iter().map(|field| match &field.ident {
        Some(name) => format!("{name}: {}{}", text(&field.ty), Marks(&field.attrs)),
        None => text(&field.ty) + &Marks(&field.attrs).to_string(),
    });
    let each = each.collect::<Vec<_>>().join(", ");
    match fields {
        Fields::Named(_) => format!(" {{ {each} }}"),
        Fields::Unnamed(_) => format!("({each})"),
        Fields::Unit => String::new(),
    }
}

/// Tokens as text, with spaces as rustfmt sets them.
pub(crate) fn text(tokens: &impl ToTokens) -> String {
    let mut text = String::new();
    write_tokens(tokens.to_token_stream(), &mut text);
    let end = text.trim_end().trim_end_matches(',').len();
    text.truncate(end);
    if text.starts_with("where ") { format!(" {text}") } else { text }
}

fn write_tokens(tokens: TokenStream, text: &mut String) {
    for token in tokens {
        match token {
            TokenTree::Group(group) => {
                let (open, close) = match group.delimiter() {
                    Delimiter::Parenthesis => ("(", ")"),
                    Delimiter::Brace => (" { ", " }"),
                    Delimiter::Bracket => ("[", "]"),
                    Delimiter::None => ("", ""),
                };
                let last_word = text.rsplit([' ', '&', '<', '(']).next().unwrap_or_default();
                if last_word.starts_with('\'') {
                    text.push(' ');
                }
                text.push_str(open);
                let start = text.len();
                write_tokens(group.stream(), text);
                // The comma of a tuple of one stays.
                if text[start..].matches(',').count() > 1 {
                    end_list(text);
                }
                text.truncate(text.trim_end().len());
                text.push_str(close);
            }
            TokenTree::Punct(punct) => match punct.as_char() {
                ',' => text.push_str(", "),
                ';' => text.push_str("; "),
                '+' => text.push_str(" + "),
                '=' => text.push_str(" = "),
                '-' => text.push_str(if text.is_empty() || text.ends_with(' ') { "-" } else { " -" }),
                ':' if text.ends_with(": ") => {
                    text.truncate(text.len() - 2);
                    text.push_str("::");
                }
                ':' => text.push_str(": "),
                '>' if text.ends_with('-') => text.push_str("> "),
                '>' => {
                    end_list(text);
                    text.push('>');
                }
                sign => text.push(sign),
            },
            TokenTree::Ident(_) | TokenTree::Literal(_) => {
                let word = token.to_string();
                let is_after_word = |c: char| c.is_alphanumeric() || ['_', '>', ')', ']', '"'].contains(&c);
                if text.ends_with(is_after_word) {
                    text.push(' ');
                }
                text.push_str(&word);
                if ["as", "const", "dyn", "impl", "in", "mut", "where"].contains(&&*word) {
                    text.push(' ');
                }
            }
        }
    }
}

/// Removes the comma after the last of several.
fn end_list(text: &mut String) {
    let end = text.trim_end().trim_end_matches(',').len();
    text.truncate(end);
}
