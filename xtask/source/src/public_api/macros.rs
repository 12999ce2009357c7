//! Expands the crate's own `macro_rules!` where they declare items.

use std::collections::BTreeMap;

use proc_macro2::{Delimiter, Group, Ident, Span, TokenStream, TokenTree};
use quote::ToTokens;
use syn::ext::IdentExt as _;
use syn::parse::discouraged::Speculative as _;
use syn::parse::{ParseStream, Parser as _};
use syn::{Error, Result};

/// A part of a macro's pattern or body.
enum Part {
    Token(TokenTree),
    Group(Delimiter, Vec<Part>),
    /// The kind only in a pattern.
    Variable(String, Option<String>),
    Repeat(Vec<Part>, Option<TokenTree>, char),
}

#[derive(Clone)]
enum Binding {
    One(TokenStream),
    Each(Vec<Binding>),
}

type Bindings = BTreeMap<String, Binding>;

/// The rules of one macro: patterns and bodies.
#[derive(Default)]
pub(crate) struct Macro(Vec<(Vec<Part>, Vec<Part>)>);

impl Macro {
    /// Reads what stands between the braces of a `macro_rules!`.
    pub(crate) fn read(rules: TokenStream) -> Result<Self> {
        // A rule is a pattern in brackets, `=>`, a body in brackets, and perhaps `;`.
        let groups: Vec<_> = rules
            .into_iter()
            .filter_map(|token| match token {
                TokenTree::Group(group) => Some(group.stream()),
                _ => None,
            })
            .collect();
        let rules = groups.chunks_exact(2).map(|rule| Ok((parts(&rule[0], true)?, parts(&rule[1], false)?)));
        rules.collect::<Result<_>>().map(Self)
    }

    /// The items that an invocation declares.
    pub(crate) fn expand(&self, arguments: &TokenStream) -> Result<Vec<syn::Item>> {
        let mut last = Error::new(Span::call_site(), "the macro has no rules that can be read");
        for (pattern, body) in &self.0 {
            match match_all(pattern).parse2(arguments.clone()) {
                Ok(bindings) => return Ok(syn::parse2::<syn::File>(transcribe(body, &bindings))?.items),
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

fn parts(tokens: &TokenStream, is_pattern: bool) -> Result<Vec<Part>> {
    let mut parts = Vec::new();
    let mut tokens = tokens.clone().into_iter().peekable();
    let is = |token: Option<&TokenTree>, signs: &str| match token {
        Some(TokenTree::Punct(punct)) => signs.contains(punct.as_char()),
        _ => false,
    };
    while let Some(token) = tokens.next() {
        if !is(Some(&token), "$") {
            parts.push(match token {
                TokenTree::Group(group) => {
                    Part::Group(group.delimiter(), self::parts(&group.stream(), is_pattern)?)
                }
                token => Part::Token(token),
            });
            continue;
        }
        parts.push(match tokens.next() {
            Some(TokenTree::Ident(name)) if name == "crate" => {
                Part::Token(Ident::new("crate", Span::call_site()).into())
            }
            Some(TokenTree::Ident(name)) => {
                let kind = is_pattern.then(|| tokens.by_ref().nth(1)).flatten();
                Part::Variable(name.to_string(), kind.map(|kind| kind.to_string()))
            }
            Some(TokenTree::Group(group)) => {
                let separator = if is(tokens.peek(), "*+?") { None } else { tokens.next() };
                let Some(TokenTree::Punct(count)) = tokens.next() else {
                    return Err(Error::new(group.span(), "a repetition without `*`, `+` or `?`"));
                };
                Part::Repeat(self::parts(&group.stream(), is_pattern)?, separator, count.as_char())
            }
            _ => return Err(Error::new(Span::call_site(), "a lonely `$`")),
        });
    }
    Ok(parts)
}

/// A parser of a whole stream.
fn match_all(pattern: &[Part]) -> impl FnOnce(ParseStream<'_>) -> Result<Bindings> + '_ {
    |input| {
        let mut found = Bindings::new();
        match_parts(pattern, input, &mut found)?;
        if input.is_empty() { Ok(found) } else { Err(input.error("no rule of the macro matches")) }
    }
}

fn match_parts(pattern: &[Part], input: ParseStream<'_>, found: &mut Bindings) -> Result<()> {
    for part in pattern {
        match part {
            Part::Token(token) => match_token(token, input)?,
            Part::Group(delimiter, pattern) => match input.parse()? {
                TokenTree::Group(group) if group.delimiter() == *delimiter => {
                    found.extend(match_all(pattern).parse2(group.stream())?);
                }
                other => return Err(Error::new(other.span(), "a group is expected")),
            },
            Part::Variable(name, kind) => {
                let tokens = fragment(kind.as_deref().unwrap_or_default(), input)?;
                found.insert(name.clone(), Binding::One(tokens));
            }
            Part::Repeat(pattern, separator, count) => {
                let mut rounds: Vec<Bindings> = Vec::new();
                while !input.is_empty() && (*count != '?' || rounds.is_empty()) {
                    let ahead = input.fork();
                    let mut round = Bindings::new();
                    let separated = separator.as_ref().filter(|_| !rounds.is_empty());
                    let matched = separated.map_or(Ok(()), |separator| match_token(separator, &ahead));
                    if matched.and_then(|()| match_parts(pattern, &ahead, &mut round)).is_err() {
                        break;
                    }
                    input.advance_to(&ahead);
                    rounds.push(round);
                }
                if *count == '+' && rounds.is_empty() {
                    return Err(input.error("at least one is expected"));
                }
                for name in variables(pattern) {
                    let each = rounds.iter_mut().filter_map(|round| round.remove(&name)).collect();
                    found.insert(name, Binding::Each(each));
                }
            }
        }
    }
    Ok(())
}

fn match_token(token: &TokenTree, input: ParseStream<'_>) -> Result<()> {
    let found: TokenTree = input.parse()?;
    if found.to_string() == token.to_string() {
        return Ok(());
    }
    Err(Error::new(found.span(), format!("`{token}` is expected, not `{found}`")))
}

fn fragment(kind: &str, input: ParseStream<'_>) -> Result<TokenStream> {
    Ok(match kind {
        "ident" => Ident::parse_any(input)?.into_token_stream(),
        "literal" => input.parse::<syn::Lit>()?.into_token_stream(),
        "meta" => input.parse::<syn::Meta>()?.into_token_stream(),
        "path" => input.parse::<syn::Path>()?.into_token_stream(),
        "ty" => input.parse::<syn::Type>()?.into_token_stream(),
        "block" => input.parse::<syn::Block>()?.into_token_stream(),
        "expr" => input.parse::<syn::Expr>()?.into_token_stream(),
        "pat_param" => syn::Pat::parse_single(input)?.into_token_stream(),
        "tt" => input.parse::<TokenTree>()?.into_token_stream(),
        "vis" => input.parse::<syn::Visibility>()?.into_token_stream(),
        _ => return Err(input.error(format!("fragments of the kind `{kind}` are not implemented"))),
    })
}

fn variables(parts: &[Part]) -> Vec<String> {
    let of = |part: &Part| match part {
        Part::Token(_) => Vec::new(),
        Part::Variable(name, _) => vec![name.clone()],
        Part::Group(_, parts) | Part::Repeat(parts, ..) => variables(parts),
    };
    parts.iter().flat_map(of).collect()
}

fn transcribe(body: &[Part], bindings: &Bindings) -> TokenStream {
    let mut tokens = TokenStream::new();
    for part in body {
        match part {
            Part::Token(token) => tokens.extend([token.clone()]),
            Part::Group(delimiter, body) => {
                tokens.extend([TokenTree::from(Group::new(*delimiter, transcribe(body, bindings)))]);
            }
            Part::Variable(name, _) => match bindings.get(name) {
                Some(Binding::One(found)) => tokens.extend(found.clone()),
                // Variables of a macro that this one declares.
                _ => tokens.extend(format!("${name}").parse::<TokenStream>().unwrap_or_default()),
            },
            Part::Repeat(body, separator, _) => {
                let each = variables(body).into_iter().filter_map(|name| match bindings.get(&name) {
                    Some(Binding::Each(each)) => Some((name, each)),
                    _ => None,
                });
                let each: Vec<_> = each.collect();
                for round in 0..each.iter().map(|(_, each)| each.len()).max().unwrap_or_default() {
                    tokens.extend(separator.clone().filter(|_| round > 0));
                    let mut bindings = bindings.clone();
                    let own =
                        each.iter().filter_map(|(name, each)| Some((name.clone(), each.get(round)?.clone())));
                    bindings.extend(own);
                    tokens.extend(transcribe(body, &bindings));
                }
            }
        }
    }
    tokens
}
