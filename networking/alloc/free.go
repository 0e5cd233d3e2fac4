// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package alloc

// freeSet is a set of numbers as disjoint intervals that do not touch, in a treap: a
// search tree by first number that is a heap by random priority, so its depth is
// O(log n) whatever the order of calls. The nodes lie in one slice, to be cheap for the
// collector. The priorities come from a counter, so the same calls make the same tree.
type freeSet struct {
	// nodes[none] is no node.
	nodes []freeNode
	root  int32
	// spare is the first of the nodes not in use, which are linked by left.
	spare int32
	seed  uint64
}

type freeNode struct {
	span

	left, right int32
	priority    uint32
}

// none is the index that stands for no node.
const none int32 = 0

func newFreeSet() freeSet { return freeSet{nodes: make([]freeNode, 1)} }

// lowest is the smallest number.
func (s *freeSet) lowest() (u128, bool) {
	if s.root == none {
		return u128{}, false
	}

	at := s.root
	for s.nodes[at].left != none {
		at = s.nodes[at].left
	}

	return s.nodes[at].first, true
}

func (s *freeSet) has(n u128) bool {
	at, _ := s.around(n)

	return at != none && !s.nodes[at].last.less(n)
}

// fill makes an empty set one of all numbers of a span.
func (s *freeSet) fill(in span) { s.root = s.insert(s.root, s.node(in)) }

// take removes a number, and says whether it was there.
func (s *freeSet) take(n u128) bool {
	at, _ := s.around(n)
	if at == none || s.nodes[at].last.less(n) {
		return false
	}

	in := s.nodes[at].span

	switch n {
	case in.first:
		if in.single() {
			s.root = s.remove(s.root, n)
		} else {
			// The order of the intervals stays, so the node may keep its place.
			s.nodes[at].first = n.next()
		}
	case in.last:
		s.nodes[at].last = n.previous()
	default:
		s.nodes[at].last = n.previous()
		s.root = s.insert(s.root, s.node(span{first: n.next(), last: in.last}))
	}

	return true
}

// give adds a number, and says whether it was missing.
func (s *freeSet) give(n u128) bool {
	before, after := s.around(n)
	if before != none && !s.nodes[before].last.less(n) {
		return false
	}

	joinsBefore := before != none && s.nodes[before].last.next() == n
	joinsAfter := after != none && n.next() == s.nodes[after].first

	switch {
	case joinsBefore && joinsAfter:
		last := s.nodes[after].last
		s.root = s.remove(s.root, s.nodes[after].first)
		s.nodes[before].last = last
	case joinsBefore:
		s.nodes[before].last = n
	case joinsAfter:
		s.nodes[after].first = n
	default:
		s.root = s.insert(s.root, s.node(span{first: n, last: n}))
	}

	return true
}

// around finds the last interval that begins at n or before it, and the one after that.
func (s *freeSet) around(n u128) (before, after int32) {
	for at := s.root; at != none; {
		if n.less(s.nodes[at].first) {
			after, at = at, s.nodes[at].left
		} else {
			before, at = at, s.nodes[at].right
		}
	}

	return before, after
}

func (s *freeSet) node(in span) int32 {
	at := s.spare
	if at == none {
		s.nodes = append(s.nodes, freeNode{})
		//nolint:gosec // G115: two thousand million intervals do not fit into memory
		at = int32(len(s.nodes) - 1)
	} else {
		s.spare = s.nodes[at].left
	}

	s.nodes[at] = freeNode{span: in, priority: s.random()}

	return at
}

// random is the next number of splitmix64, its upper half.
func (s *freeSet) random() uint32 {
	s.seed += 0x9e3779b97f4a7c15
	z := s.seed
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9
	z = (z ^ (z >> 27)) * 0x94d049bb133111eb

	return uint32((z ^ (z >> 31)) >> 32)
}

// insert puts a node into the tree at a root, and returns the new root.
func (s *freeSet) insert(root, node int32) int32 {
	if root == none {
		return node
	}

	if s.nodes[node].first.less(s.nodes[root].first) {
		left := s.insert(s.nodes[root].left, node)
		s.nodes[root].left = left

		if s.nodes[left].priority > s.nodes[root].priority {
			s.nodes[root].left, s.nodes[left].right = s.nodes[left].right, root

			return left
		}

		return root
	}

	right := s.insert(s.nodes[root].right, node)
	s.nodes[root].right = right

	if s.nodes[right].priority > s.nodes[root].priority {
		s.nodes[root].right, s.nodes[right].left = s.nodes[right].left, root

		return right
	}

	return root
}

// remove takes the interval that begins with a number, which is there, out of the tree
// at a root, and returns the new root.
func (s *freeSet) remove(root int32, first u128) int32 {
	switch first.cmp(s.nodes[root].first) {
	case -1:
		s.nodes[root].left = s.remove(s.nodes[root].left, first)

		return root
	case 1:
		s.nodes[root].right = s.remove(s.nodes[root].right, first)

		return root
	default:
		joined := s.join(s.nodes[root].left, s.nodes[root].right)
		s.nodes[root] = freeNode{left: s.spare}
		s.spare = root

		return joined
	}
}

// join makes one tree of two, of which the first holds the lower numbers.
func (s *freeSet) join(low, high int32) int32 {
	switch {
	case low == none:
		return high
	case high == none:
		return low
	case s.nodes[low].priority > s.nodes[high].priority:
		s.nodes[low].right = s.join(s.nodes[low].right, high)

		return low
	default:
		s.nodes[high].left = s.join(low, s.nodes[high].left)

		return high
	}
}

// list is the first spans, at most so many, in order.
func (s *freeSet) list(most int) []span {
	var (
		out  []span
		path []int32
	)

	for at := s.root; (at != none || len(path) > 0) && len(out) < most; {
		if at != none {
			path, at = append(path, at), s.nodes[at].left

			continue
		}

		at, path = path[len(path)-1], path[:len(path)-1]
		out = append(out, s.nodes[at].span)
		at = s.nodes[at].right
	}

	return out
}
