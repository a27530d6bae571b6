//! A queue whose members can leave from anywhere in constant time: a doubly linked list in a vector.

/// No member.
const NONE: u32 = u32::MAX;

/// How many nodes an empty list may keep for members to come.
const KEPT: usize = 32;

/// The members in order of arrival. An index belongs to its member from `push` to `remove`.
#[derive(Debug)]
pub(crate) struct List<T> {
    nodes: Vec<Node<T>>,
    head: u32,
    tail: u32,
    /// The first of the free nodes, which are chained by `next`.
    free: u32,
    len: u32,
}

#[derive(Debug)]
struct Node<T> {
    prev: u32,
    next: u32,
    /// `None` while the node is free.
    value: Option<T>,
}

// === impl List ===

impl<T> List<T> {
    pub(crate) const fn new() -> Self {
        Self { nodes: Vec::new(), head: NONE, tail: NONE, free: NONE, len: 0 }
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len as usize
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn first(&self) -> Option<u32> {
        (self.head != NONE).then_some(self.head)
    }

    pub(crate) fn last(&self) -> Option<u32> {
        (self.tail != NONE).then_some(self.tail)
    }

    pub(crate) fn after(&self, index: u32) -> Option<u32> {
        self.nodes.get(index as usize).map(|node| node.next).filter(|next| *next != NONE)
    }

    pub(crate) fn before(&self, index: u32) -> Option<u32> {
        self.nodes.get(index as usize).map(|node| node.prev).filter(|prev| *prev != NONE)
    }

    pub(crate) fn get(&self, index: u32) -> Option<&T> {
        self.nodes.get(index as usize)?.value.as_ref()
    }

    pub(crate) fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        self.nodes.get_mut(index as usize)?.value.as_mut()
    }

    pub(crate) fn front(&self) -> Option<&T> {
        self.get(self.head)
    }

    pub(crate) fn front_mut(&mut self) -> Option<&mut T> {
        self.get_mut(self.head)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.nodes.iter_mut().filter_map(|node| node.value.as_mut())
    }

    /// Appends `value` and returns its index.
    #[inline]
    pub(crate) fn push(&mut self, value: T) -> u32 {
        let node = Node { prev: self.tail, next: NONE, value: Some(value) };
        let index = match self.nodes.get_mut(self.free as usize) {
            Some(free) => {
                let index = self.free;
                self.free = free.next;
                *free = node;
                index
            }
            None => {
                // The first member often stays the only one.
                if self.nodes.capacity() == 0 {
                    self.nodes.reserve_exact(1);
                }
                self.nodes.push(node);
                // Four thousand million members would need more memory than their futures leave.
                (self.nodes.len() - 1) as u32
            }
        };
        match self.nodes.get_mut(self.tail as usize) {
            Some(tail) => tail.next = index,
            None => self.head = index,
        }
        self.tail = index;
        self.len += 1;
        index
    }

    /// Takes the member out; `None` if there is none at `index`.
    #[inline]
    pub(crate) fn remove(&mut self, index: u32) -> Option<T> {
        let node = self.nodes.get_mut(index as usize)?;
        let value = node.value.take()?;
        let (prev, next) = (node.prev, node.next);
        node.next = self.free;
        self.free = index;
        self.len -= 1;
        match self.nodes.get_mut(prev as usize) {
            Some(prev) => prev.next = next,
            None => self.head = next,
        }
        match self.nodes.get_mut(next as usize) {
            Some(next) => next.prev = prev,
            None => self.tail = prev,
        }
        if self.len == 0 && self.nodes.len() > KEPT {
            self.shrink();
        }
        Some(value)
    }

    /// Takes all members out, in order.
    pub(crate) fn into_members(mut self) -> impl Iterator<Item = T> {
        std::iter::from_fn(move || self.remove(self.head))
    }

    /// Gives storage back if nobody is a member.
    pub(crate) fn shrink(&mut self) {
        if self.is_empty() {
            *self = Self::new();
        }
    }

    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.nodes.capacity()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members(list: &List<u32>) -> Vec<u32> {
        let mut seen = Vec::new();
        let mut at = list.first();
        while let Some(index) = at {
            seen.push(*list.get(index).unwrap());
            at = list.after(index);
        }
        let mut back = Vec::new();
        let mut at = list.last();
        while let Some(index) = at {
            back.push(*list.get(index).unwrap());
            at = list.before(index);
        }
        back.reverse();
        assert_eq!(seen, back);
        assert_eq!(seen.len(), list.len());
        seen
    }

    #[test]
    fn members_leave_from_anywhere_and_order_stays() {
        let mut rng = fastrand::Rng::with_seed(7);
        let mut list = List::new();
        let mut model: Vec<(u32, u32)> = Vec::new();
        for n in 0..if cfg!(miri) { 300 } else { 10_000 } {
            if rng.bool() || model.is_empty() {
                model.push((list.push(n), n));
            } else {
                let (index, value) = model.remove(rng.usize(..model.len()));
                assert_eq!(list.remove(index), Some(value));
                assert_eq!(list.remove(index), None);
            }
            assert_eq!(members(&list), model.iter().map(|(_, value)| *value).collect::<Vec<_>>());
        }
    }

    #[test]
    fn storage_is_used_again_and_given_back_when_empty() {
        let mut list = List::new();
        for _ in 0..100 {
            let one = list.push(1);
            list.remove(one);
        }
        assert_eq!(list.capacity(), 1);
        list.shrink();
        assert_eq!(list.capacity(), 0);
        for (many, is_kept) in [(KEPT, true), (KEPT + 1, false)] {
            let many: Vec<_> = (0..many).map(|_| list.push(1)).collect();
            for one in many {
                list.remove(one);
            }
            assert_eq!(list.capacity() > 0, is_kept);
        }
    }
}
