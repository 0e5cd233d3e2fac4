// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package gates

import (
	"slices"
	"sync"
)

// Nodes of the tree, by name.
const (
	root         = "detached"
	nodeForeign  = "foreign"
	nodeDetach   = "detach"
	nodeDetachIt = "detachIt"
	nodeDelete   = "delete"
	nodeDeleteIt = "deleteIt"
	nodeWhen     = "when"
	nodeExists   = "exists"
	nodeStale    = "stale"
	nodeRecreate = "recreate"
	nodeMayMake  = "mayMake"
	nodePending  = "pending"
	nodePatch    = "patch"
	nodeMayPatch = "mayPatch"
	nodeManifest = "manifest"
	nodeApply    = "apply"
	nodeOutdated = "outdated"
)

// Answers.
const (
	yes = "yes"
	no  = "no"
)

// node is one question.
type node struct {
	name, question string
	ask            func(State) string
	branches       []branch
}

// branch is where an answer leads: to a node or to an end.
type branch struct {
	answer, to string
	end        *end
}

// end is a decision.
type end struct {
	outcome Outcome
	reason  Reason
	verb    Verb
	// prune says that pruning follows, where there is a retention.
	prune bool
}

func (e *end) actions(state State) []Action {
	var out []Action

	switch e.verb {
	case "":
	case Patch:
		for i, value := range state.Patch {
			if value == True {
				out = append(out, Action{Verb: Patch, Index: i})
			}
		}
	default:
		out = append(out, Action{Verb: e.verb})
	}

	if e.prune && state.Retain {
		out = append(out, Action{Verb: Prune})
	}

	return out
}

func to(answer, node string) branch { return branch{answer: answer, to: node} }

// skip leaves the object as it is; earlier versions are pruned.
func skip(answer string, reason Reason) branch {
	return branch{answer: answer, end: &end{outcome: Skip, reason: reason, prune: true}}
}

// leave writes nothing at all. A stale event does not prune, either: the versions that it
// takes for earlier ones are not.
func leave(answer string, reason Reason) branch {
	return branch{answer: answer, end: &end{outcome: Skip, reason: reason}}
}

func fail(answer string, reason Reason) branch {
	return branch{answer: answer, end: &end{outcome: Fail, reason: reason}}
}

func act(answer string, verb Verb, reason Reason) branch {
	prune := verb != Detach && verb != Delete

	return branch{answer: answer, end: &end{outcome: Act, reason: reason, verb: verb, prune: prune}}
}

// gate is the answer of a gate.
func gate(of func(State) Value, otherwise Value) func(State) string {
	return func(state State) string {
		if value := of(state); value != Unset {
			return value.String()
		}

		return otherwise.String()
	}
}

func answer(is func(State) bool) func(State) string {
	return func(state State) string {
		if is(state) {
			return yes
		}

		return no
	}
}

func found(state State) string { return state.Found.String() }

// patchAnswer is error before true: no patch is sent while one of the gates has failed.
func patchAnswer(state State) string {
	for _, value := range []Value{Error, True} {
		if slices.Contains(state.Patch, value) {
			return value.String()
		}
	}

	return False.String()
}

// tree is the decision tree. An error in any gate that is reached ends it.
//
//nolint:gochecknoglobals // made once and never changed: each event asks it for each object
var tree = sync.OnceValue(func() map[string]node {
	nodes := append(removal(), writing()...)
	out := make(map[string]node, len(nodes))

	for _, one := range nodes {
		out[one.name] = one
	}

	return out
})

// removal is the part of the tree that no when gates.
func removal() []node {
	return []node{{
		root, "was the object detached before?", answer(func(s State) bool { return s.Found == Detached }),
		[]branch{leave(yes, ReasonDetached), to(no, nodeForeign)},
	}, {
		nodeForeign, "is it somebody else's, and the resource being deleted?",
		answer(func(s State) bool { return s.Found == Unmanaged && s.DeleteEvent }),
		[]branch{leave(yes, ReasonNotManaged), to(no, nodeDetach)},
	}, {
		nodeDetach, "lifecycle.detach.when", gate(func(s State) Value { return s.Detach }, False),
		[]branch{to("true", nodeDetachIt), fail("error", ReasonGate), to("false", nodeDelete)},
	}, {
		nodeDetachIt, "what is there to detach?", found,
		[]branch{
			act("managed", Detach, ReasonDetach), act("deleting", Detach, ReasonDetach),
			leave("absent", ReasonNothingThere), leave("unmanaged", ReasonNotManaged),
		},
	}, {
		nodeDelete, "lifecycle.delete.when", gate(func(s State) Value { return s.Delete }, False),
		[]branch{to("true", nodeDeleteIt), fail("error", ReasonGate), to("false", nodeStale)},
	}, {
		nodeDeleteIt, "what is there to delete?", found,
		[]branch{
			act("managed", Delete, ReasonDelete), act("deleting", Delete, ReasonDelete),
			leave("absent", ReasonNothingThere), leave("unmanaged", ReasonNotManaged),
		},
	}}
}

// writing is the part of the tree that a stale event does not reach.
func writing() []node {
	return []node{{
		nodeStale, "is it managed, and newer than the event?",
		answer(func(s State) bool { return (s.Found == Managed || s.Found == Deleting) && s.Generation == Newer }),
		[]branch{leave(yes, ReasonStale), to(no, nodeWhen)},
	}, {
		nodeWhen, "when", gate(func(s State) Value { return s.When }, True),
		[]branch{to("true", nodeExists), skip("false", ReasonWhen), fail("error", ReasonGate)},
	}, {
		nodeExists, "is there an object?", answer(func(s State) bool { return s.Found != Absent }),
		[]branch{to(yes, nodeRecreate), to(no, nodeManifest)},
	}, {
		nodeRecreate, "lifecycle.recreate.when", gate(func(s State) Value { return s.Recreate }, False),
		[]branch{to("true", nodeMayMake), fail("error", ReasonGate), to("false", nodePending)},
	}, {
		nodeMayMake, "can it be made anew?", mayMake,
		[]branch{
			act(yes, Recreate, ReasonRecreate), skip("still being deleted", ReasonDeletionPending), fail("not ours", ReasonNotManaged),
		},
	}, {
		nodePending, "is it being deleted?", answer(func(s State) bool { return s.Found == Deleting }),
		[]branch{skip(yes, ReasonDeletionPending), to(no, nodePatch)},
	}, {
		nodePatch, "any of lifecycle.patch[].when", patchAnswer,
		[]branch{to("true", nodeMayPatch), fail("error", ReasonGate), to("false", nodeManifest)},
	}, {
		nodeMayPatch, "is it ours to patch?", answer(func(s State) bool { return s.Found == Managed }),
		[]branch{act(yes, Patch, ReasonPatch), fail(no, ReasonNotManaged)},
	}, {
		nodeManifest, "is there a manifest?", answer(func(s State) bool { return !s.PatchOnly }),
		[]branch{to(yes, nodeApply), skip(no, ReasonNoManifest)},
	}, {
		nodeApply, "lifecycle.apply.when", gate(func(s State) Value { return s.Apply }, True),
		[]branch{to("true", nodeOutdated), skip("false", ReasonApplyWhen), fail("error", ReasonGate)},
	}, {
		nodeOutdated, "which generation is there?", outdated,
		[]branch{
			act("none", Apply, ReasonCreate), act("an older one", Apply, ReasonGeneration),
			skip("the event's", ReasonUnchanged), fail("not ours", ReasonNotManaged),
		},
	}}
}

func mayMake(state State) string {
	switch {
	case state.Found == Unmanaged:
		return "not ours"
	case state.Found == Deleting && !state.Retain:
		return "still being deleted"
	default:
		return yes
	}
}

func outdated(state State) string {
	switch {
	case state.Found == Absent:
		return "none"
	case state.Found == Unmanaged:
		return "not ours"
	case state.Generation == Equal:
		return "the event's"
	default:
		return "an older one"
	}
}
