// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package alloc

// freeSet is a set of numbers. It stores the numbers as disjoint intervals that do not touch, in a treap:
// the nodes form a search tree by first number and a heap by random priority, so the depth is O(log n) for
// any order of calls. All nodes are in one slice because the garbage collector then has little to scan. The
// priorities come from a seeded generator, so the same calls always build the same tree.
type freeSet struct {
	// nodes[nilIndex] is not a node.
	nodes []freeNode
	root  int32
	// firstUnused is the index of the first unused node. Unused nodes are linked by left.
	firstUnused int32
	seed        uint64
}

type freeNode struct {
	span

	left, right int32
	priority    uint32
}

// nilIndex is the index that means "no node" or "no record".
const nilIndex int32 = 0

func newFreeSet() freeSet { return freeSet{nodes: make([]freeNode, 1)} }

// findLowest returns the smallest number of the set, and false if the set is empty.
func (s *freeSet) findLowest() (u128, bool) {
	if s.root == nilIndex {
		return u128{}, false
	}

	index := s.root
	for s.nodes[index].left != nilIndex {
		index = s.nodes[index].left
	}

	return s.nodes[index].first, true
}

func (s *freeSet) contains(n u128) bool {
	index, _ := s.findAround(n)

	return index != nilIndex && !s.nodes[index].last.less(n)
}

// fill adds all numbers of a span to an empty set.
func (s *freeSet) fill(r span) { s.root = s.insert(s.root, s.newNode(r)) }

// removeNumber removes a number, and returns false if the set did not contain it.
func (s *freeSet) removeNumber(n u128) bool {
	index, _ := s.findAround(n)
	if index == nilIndex || s.nodes[index].last.less(n) {
		return false
	}

	r := s.nodes[index].span

	switch n {
	case r.first:
		if r.isSingle() {
			s.root = s.remove(s.root, n)
		} else {
			// The order of the intervals does not change, so the node stays in its place.
			s.nodes[index].first = n.next()
		}
	case r.last:
		s.nodes[index].last = n.previous()
	default:
		s.nodes[index].last = n.previous()
		s.root = s.insert(s.root, s.newNode(span{first: n.next(), last: r.last}))
	}

	return true
}

// addNumber adds a number, and returns false if the set already contained it.
func (s *freeSet) addNumber(n u128) bool {
	before, after := s.findAround(n)
	if before != nilIndex && !s.nodes[before].last.less(n) {
		return false
	}

	joinsBefore := before != nilIndex && s.nodes[before].last.next() == n
	joinsAfter := after != nilIndex && n.next() == s.nodes[after].first

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
		s.root = s.insert(s.root, s.newNode(span{first: n, last: n}))
	}

	return true
}

// findAround returns the node of the last interval that begins at or before n, and the node of the next
// interval. Both are nilIndex if there is no such interval.
func (s *freeSet) findAround(n u128) (before, after int32) {
	for index := s.root; index != nilIndex; {
		if n.less(s.nodes[index].first) {
			after, index = index, s.nodes[index].left
		} else {
			before, index = index, s.nodes[index].right
		}
	}

	return before, after
}

func (s *freeSet) newNode(r span) int32 {
	index := s.firstUnused
	if index == nilIndex {
		s.nodes = append(s.nodes, freeNode{})
		//nolint:gosec // G115: two billion intervals do not fit into memory
		index = int32(len(s.nodes) - 1)
	} else {
		s.firstUnused = s.nodes[index].left
	}

	s.nodes[index] = freeNode{span: r, priority: s.nextRandom()}

	return index
}

// nextRandom returns the upper half of the next splitmix64 number.
func (s *freeSet) nextRandom() uint32 {
	s.seed += 0x9e3779b97f4a7c15
	z := s.seed
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9
	z = (z ^ (z >> 27)) * 0x94d049bb133111eb

	return uint32((z ^ (z >> 31)) >> 32)
}

// insert adds a node to the tree below root, and returns the new root.
func (s *freeSet) insert(root, node int32) int32 {
	if root == nilIndex {
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

// remove deletes the interval that begins with first from the tree below root, and returns the new root.
// The tree must contain the interval.
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
		s.nodes[root] = freeNode{left: s.firstUnused}
		s.firstUnused = root

		return joined
	}
}

// join merges two trees and returns the root. All numbers in low must be lower than those in high.
func (s *freeSet) join(low, high int32) int32 {
	switch {
	case low == nilIndex:
		return high
	case high == nilIndex:
		return low
	case s.nodes[low].priority > s.nodes[high].priority:
		s.nodes[low].right = s.join(s.nodes[low].right, high)

		return low
	default:
		s.nodes[high].left = s.join(low, s.nodes[high].left)

		return high
	}
}

// list returns the first spans in ascending order, at most limit of them.
func (s *freeSet) list(limit int) []span {
	var (
		out  []span
		path []int32
	)

	for index := s.root; (index != nilIndex || len(path) > 0) && len(out) < limit; {
		if index != nilIndex {
			path, index = append(path, index), s.nodes[index].left

			continue
		}

		index, path = path[len(path)-1], path[:len(path)-1]
		out = append(out, s.nodes[index].span)
		index = s.nodes[index].right
	}

	return out
}
