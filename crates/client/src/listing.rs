//! Merges the directory pages of all servers into one listing. Pure.

use forebay_wire::Entry;

/// The entries of one server from a cookie on.
pub(crate) struct Page {
    pub(crate) entries: Vec<Entry>,
    /// Cookie of the next page, or `None` at the end.
    pub(crate) next: Option<u64>,
}

/// Number of entries to request from each server, so that all together return about `limit`. Names are distributed by a
/// hash, and entries after the end of the shortest page are requested again.
pub(crate) fn share(limit: u32, servers: usize) -> u32 {
    let even = limit / servers.max(1) as u32;
    (even + even / 16 + 8).min(limit)
}

/// Merges the entries up to the point that every server's page reaches, in the order of their cookies. Entries with the
/// same cookie stay together.
pub(crate) fn merge(pages: Vec<Page>, limit: usize) -> Page {
    let reach = pages.iter().filter_map(|page| page.next).min();
    let mut entries: Vec<Entry> = pages.into_iter().flat_map(|page| page.entries).collect();
    entries.sort_by_key(|entry| entry.cookie);
    if let Some(reach) = reach {
        entries.retain(|entry| entry.cookie <= reach);
    }
    let mut cut = limit.min(entries.len());
    while cut > 0 && cut < entries.len() && entries[cut].cookie == entries[cut - 1].cookie {
        cut += 1;
    }
    let next = if cut < entries.len() { entries[..cut].last().map(|last| last.cookie) } else { reach };
    entries.truncate(cut);
    Page { entries, next }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_model::{FileId, FileKind, Name};

    fn page(cookies: &[u64], next: Option<u64>) -> Page {
        let entry = |cookie: &u64| Entry {
            name: Name::new(format!("n{cookie}")).unwrap(),
            file: FileId(*cookie),
            kind: FileKind::File,
            cookie: *cookie,
            attr: None,
        };
        Page { entries: cookies.iter().map(entry).collect(), next }
    }

    #[test]
    fn pages_are_merged_up_to_the_shortest_one() {
        type Given<'a> = (&'a [u64], Option<u64>);
        let table: [(&[Given<'_>], usize, Given<'_>); 8] = [
            (&[(&[1, 4], None), (&[2, 3], None)], 9, (&[1, 2, 3, 4], None)),
            (&[(&[1, 4], Some(4)), (&[2, 9], Some(9))], 9, (&[1, 2, 4], Some(4))),
            (&[(&[1, 4], Some(4)), (&[], None)], 9, (&[1, 4], Some(4))),
            (&[(&[5, 6], Some(6)), (&[7], None)], 9, (&[5, 6], Some(6))),
            (&[(&[1, 3], None), (&[2, 4], None)], 3, (&[1, 2, 3], Some(3))),
            (&[(&[1, 3], None), (&[2, 3], None)], 3, (&[1, 2, 3, 3], None)),
            (&[(&[1, 3, 8], None), (&[2, 3], None)], 3, (&[1, 2, 3, 3], Some(3))),
            (&[(&[], None), (&[], None)], 3, (&[], None)),
        ];
        for (given, limit, (cookies, next)) in table {
            let pages = given.iter().map(|(cookies, next)| page(cookies, *next)).collect();
            let merged = merge(pages, limit);
            let found: Vec<u64> = merged.entries.iter().map(|entry| entry.cookie).collect();
            assert_eq!((&found[..], merged.next), (cookies, next), "{given:?} {limit}");
        }
    }

    #[test]
    fn every_entry_is_listed_once_for_any_page_size() {
        // Three servers with 1,000 entries, every seventh cookie on two of them.
        let all: Vec<Vec<u64>> = (0..3_u64)
            .map(|server| {
                (1..=1000).filter(|c| c % 3 == server || (c % 7 == 0 && c % 3 == (server + 1) % 3)).collect()
            })
            .collect();
        let expected = {
            let mut all = all.concat();
            all.sort_unstable();
            all
        };
        for limit in [1, 2, 10, 64, 5000] {
            let (mut found, mut cookie) = (Vec::new(), Some(0));
            while let Some(from) = cookie {
                let wanted = share(limit, 3) as usize;
                let pages = all.iter().map(|cookies| {
                    let rest: Vec<u64> = cookies.iter().copied().filter(|c| *c > from).collect();
                    let cut = wanted.min(rest.len());
                    page(&rest[..cut], (cut < rest.len()).then(|| rest[cut - 1]))
                });
                let merged = merge(pages.collect(), limit as usize);
                assert!(merged.next.is_none_or(|next| next > from), "{limit}");
                found.extend(merged.entries.iter().map(|entry| entry.cookie));
                cookie = merged.next;
            }
            assert_eq!(found, expected, "{limit}");
        }
    }
}
