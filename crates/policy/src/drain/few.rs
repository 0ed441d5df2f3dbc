//! An ordered map that mostly has few entries.
//!
//! Most files have one or two waiting pieces, most targets a few files: a small list holds these, where a
//! tree would allocate a node for each. Insertions mostly go to the end and removals mostly to the front, so
//! that no other entry is touched. A list that grows becomes a tree.

use std::cmp::Ordering;
use std::collections::btree_map;
use std::collections::vec_deque;
use std::collections::{BTreeMap, VecDeque};

/// Most entries of a list.
const FEW: usize = 32;

/// A map in the order of its keys.
#[derive(Clone, Debug)]
pub(super) enum Few<K, V> {
    /// Sorted by key.
    Sorted(VecDeque<(K, V)>),
    /// Stays a tree until it is empty.
    Tree(BTreeMap<K, V>),
}

impl<K, V> Default for Few<K, V> {
    fn default() -> Few<K, V> {
        Few::Sorted(VecDeque::new())
    }
}

impl<K: Ord + Copy, V> Few<K, V> {
    pub(super) fn get(&self, key: K) -> Option<&V> {
        match self {
            Few::Sorted(list) => find(list, &key).ok().map(|place| &list[place].1),
            Few::Tree(tree) => tree.get(&key),
        }
    }

    pub(super) fn contains(&self, key: K) -> bool {
        self.get(key).is_some()
    }

    pub(super) fn is_empty(&self) -> bool {
        match self {
            Few::Sorted(list) => list.is_empty(),
            Few::Tree(tree) => tree.is_empty(),
        }
    }

    /// The value of a key, inserted if missing.
    pub(super) fn or_insert_with(&mut self, key: K, make: impl FnOnce() -> V) -> &mut V {
        self.make_room(key);
        match self {
            Few::Sorted(list) => {
                let place = find(list, &key).unwrap_or_else(|place| {
                    list.insert(place, (key, make()));
                    place
                });
                &mut list[place].1
            }
            Few::Tree(tree) => tree.entry(key).or_insert_with(make),
        }
    }

    /// Inserts or replaces a value.
    pub(super) fn insert(&mut self, key: K, value: V) {
        self.make_room(key);
        match self {
            Few::Sorted(list) => match find(list, &key) {
                Ok(place) => list[place].1 = value,
                Err(place) => list.insert(place, (key, value)),
            },
            Few::Tree(tree) => drop(tree.insert(key, value)),
        }
    }

    pub(super) fn remove(&mut self, key: K) -> Option<V> {
        match self {
            Few::Sorted(list) => {
                find(list, &key).ok().and_then(|place| list.remove(place)).map(|(_, value)| value)
            }
            Few::Tree(tree) => {
                let value = tree.remove(&key);
                if tree.is_empty() {
                    *self = Few::default();
                }
                value
            }
        }
    }

    /// All entries, in order.
    pub(super) fn iter(&self) -> Iter<'_, K, V> {
        match self {
            Few::Sorted(list) => Iter::Sorted(list.iter()),
            Few::Tree(tree) => Iter::Tree(tree.iter()),
        }
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &V> {
        self.iter().map(|(_, value)| value)
    }

    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        let (side, tree) = match self {
            Few::Sorted(list) => (Some(list.iter_mut()), None),
            Few::Tree(tree) => (None, Some(tree.values_mut())),
        };
        side.into_iter().flatten().map(|(_, value)| value).chain(tree.into_iter().flatten())
    }

    /// The last value.
    pub(super) fn last(&self) -> Option<&V> {
        match self {
            Few::Sorted(list) => list.back().map(|(_, value)| value),
            Few::Tree(tree) => tree.values().next_back(),
        }
    }

    /// Prefetches the storage.
    pub(super) fn prefetch(&self) -> usize {
        match self {
            Few::Sorted(list) => list.len(),
            Few::Tree(tree) => tree.len(),
        }
    }

    /// The last value before a key.
    pub(super) fn before(&self, key: K) -> Option<&V> {
        match self {
            Few::Sorted(list) => place(list, &key).checked_sub(1).map(|place| &list[place].1),
            Few::Tree(tree) => tree.range(..key).next_back().map(|(_, value)| value),
        }
    }

    /// All values from a key on, in order.
    pub(super) fn from(&self, key: K) -> impl Iterator<Item = &V> {
        let (side, tree) = match self {
            Few::Sorted(list) => (Some(list.range(place(list, &key)..)), None),
            Few::Tree(tree) => (None, Some(tree.range(key..))),
        };
        let tree = tree.into_iter().flatten().map(|(_, value)| value);
        side.into_iter().flatten().map(|(_, value)| value).chain(tree)
    }

    /// Turns a full list into a tree before an insertion.
    fn make_room(&mut self, key: K) {
        if let Few::Sorted(list) = self
            && list.len() == FEW
            && find(list, &key).is_err()
        {
            *self = Few::Tree(std::mem::take(list).into_iter().collect());
        }
    }
}

/// Binary search that checks both ends first.
fn find<K: Ord, V>(list: &VecDeque<(K, V)>, key: &K) -> Result<usize, usize> {
    match list.back() {
        None => return Err(0),
        Some((last, _)) => match last.cmp(key) {
            Ordering::Less => return Err(list.len()),
            Ordering::Equal => return Ok(list.len() - 1),
            Ordering::Greater => {}
        },
    }
    match list[0].0.cmp(key) {
        Ordering::Greater => Err(0),
        Ordering::Equal => Ok(0),
        Ordering::Less => list.binary_search_by(|(other, _)| other.cmp(key)),
    }
}

/// The position of a key: the number of entries before it.
fn place<K: Ord, V>(list: &VecDeque<(K, V)>, key: &K) -> usize {
    find(list, key).unwrap_or_else(|place| place)
}

/// All of a map.
pub(super) enum Iter<'a, K, V> {
    Sorted(vec_deque::Iter<'a, (K, V)>),
    Tree(btree_map::Iter<'a, K, V>),
}

impl<'a, K: Copy, V> Iterator for Iter<'a, K, V> {
    type Item = (K, &'a V);

    fn next(&mut self) -> Option<(K, &'a V)> {
        match self {
            Iter::Sorted(list) => list.next().map(|(key, value)| (*key, value)),
            Iter::Tree(tree) => tree.next().map(|(key, value)| (*key, value)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::share::Rng;

    #[test]
    fn small_map_behaves_as_a_btree_map() {
        let mut rng = Rng::new(0xfe3);
        let (mut few, mut map) = (Few::default(), BTreeMap::new());
        let mut was_tree = 0;
        for step in 0..20_000_u64 {
            // Grows to many entries and shrinks to none, repeatedly.
            let (key, grows) = (rng.below(80), step / 400 % 2 == 0);
            match rng.below(4) {
                0 | 1 if grows => {
                    few.insert(key, step);
                    map.insert(key, step);
                }
                2 if grows => {
                    assert_eq!(few.or_insert_with(key, || step), map.entry(key).or_insert(step));
                }
                _ => assert_eq!(few.remove(key), map.remove(&key)),
            }
            was_tree += u32::from(matches!(few, Few::Tree(_)));
            assert!(few.iter().eq(map.iter().map(|(&key, value)| (key, value))));
            assert_eq!((few.get(key), few.contains(key)), (map.get(&key), map.contains_key(&key)));
            assert_eq!(few.before(key), map.range(..key).next_back().map(|(_, value)| value));
            assert!(few.from(key).eq(map.range(key..).map(|(_, value)| value)));
            assert!(few.values().eq(map.values()) && few.is_empty() == map.is_empty());
            few.values_mut().zip(map.values_mut()).for_each(|(one, other)| {
                *one += 1;
                *other += 1;
            });
        }
        assert!(was_tree > 1000 && was_tree < 19_000, "both were tried: {was_tree}");
    }
}
