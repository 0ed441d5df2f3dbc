//! The variants that are compared.

use forebay_model::Bytes;
use forebay_policy::arbiter::Choice;
use forebay_policy::drain::Order;
use std::fmt;
use std::str::FromStr;

const ORDERS: [(&str, Order); 4] = [
    ("arrival", Order::Arrival),
    ("offset", Order::Offset),
    ("target", Order::Target),
    ("trio", Order::Trio),
];

/// How data reaches the targets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Variant {
    /// Every process writes to the targets directly.
    Direct,
    /// Everything is buffered, and drained.
    Drain(Way),
}

/// How buffered data is drained.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Way {
    pub(super) order: Order,
    pub(super) choice: Choice,
    pub(super) alpha: Alpha,
    /// Size of a grant, in modelled bytes.
    pub(super) quantum: Option<Bytes>,
}

/// Writers at a target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Alpha {
    Fixed(u32),
    Learnt,
}

impl Variant {
    /// Whether it is the default configuration of an order.
    pub(super) fn is_plain(&self, order: Order) -> bool {
        *self == Variant::Drain(Way::plain(order))
    }
}

impl Way {
    fn plain(order: Order) -> Way {
        Way { order, choice: Choice::Sjf, alpha: Alpha::Fixed(2), quantum: None }
    }

    /// The same with the default α.
    pub(super) fn but_for_alpha(&self) -> Way {
        Way { alpha: Alpha::Fixed(2), ..self.clone() }
    }

    /// The same with the default choice.
    pub(super) fn but_for_choice(&self) -> Way {
        Way { choice: Choice::Sjf, ..self.clone() }
    }
}

impl FromStr for Variant {
    type Err = String;

    fn from_str(text: &str) -> Result<Variant, String> {
        let help = || {
            format!(
                "\"{text}\" is no variant: write direct, arrival, offset, target or trio, and after trio fcfs, \
                 alpha=N, alpha=learnt or quantum=SIZE"
            )
        };
        let mut words = text.split_whitespace();
        let first = words.next().ok_or_else(help)?;
        if first == "direct" {
            return words.next().map_or(Ok(Variant::Direct), |_| Err(help()));
        }
        let order = ORDERS.iter().find(|(word, _)| *word == first).ok_or_else(help)?.1;
        let mut way = Way::plain(order);
        for word in words {
            if order != Order::Trio {
                return Err(help());
            }
            match word.split_once('=') {
                None if word == "fcfs" => way.choice = Choice::Fcfs,
                None if word == "sjf" => way.choice = Choice::Sjf,
                Some(("alpha", "learnt")) => way.alpha = Alpha::Learnt,
                Some(("alpha", count)) => {
                    let count = count.parse().ok().filter(|count| (1..=64).contains(count));
                    way.alpha = Alpha::Fixed(count.ok_or_else(help)?);
                }
                Some(("quantum", size)) => way.quantum = Some(size.parse().map_err(|_| help())?),
                _ => return Err(help()),
            }
        }
        Ok(Variant::Drain(way))
    }
}

impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Variant::Drain(Way { order, choice, alpha, quantum }) = self else {
            return f.write_str("direct");
        };
        f.write_str(order_word(*order))?;
        if *choice == Choice::Fcfs {
            f.write_str(" fcfs")?;
        }
        match alpha {
            Alpha::Fixed(2) => {}
            Alpha::Fixed(count) => write!(f, " alpha={count}")?,
            Alpha::Learnt => f.write_str(" alpha=learnt")?,
        }
        quantum.map_or(Ok(()), |quantum| write!(f, " quantum={}", quantum.to_string().replace(' ', "")))
    }
}

pub(super) fn order_word(order: Order) -> &'static str {
    ORDERS.iter().find(|(_, known)| *known == order).map_or("?", |(word, _)| word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variants_are_parsed_as_displayed() {
        for text in [
            "direct",
            "arrival",
            "offset",
            "target",
            "trio",
            "trio fcfs",
            "trio alpha=4",
            "trio fcfs alpha=learnt quantum=8MiB",
        ] {
            assert_eq!(text.parse::<Variant>().unwrap().to_string(), text);
        }
        for text in
            ["", "fast", "direct fcfs", "arrival alpha=2", "trio alpha=0", "trio quantum=much", "trio slowly"]
        {
            assert!(text.parse::<Variant>().is_err(), "{text}");
        }
    }
}
