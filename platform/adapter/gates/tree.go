// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package gates

import (
	"slices"
	"sync"
)

// root is the name of the first node.
const root = "detached"

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
	// unset is the answer that counts for a gate which the task file does not have.
	unset string
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

// gate is the question whether a gate holds.
func gate(name, question string, unset Value, of func(State) Value, branches ...branch) node {
	return node{name, question, func(s State) string { return of(s).String() }, branches, unset.String()}
}

// check is a question that has a yes and a no.
func check(name, question string, is func(State) bool, branches ...branch) node {
	return choice(name, question, func(s State) string {
		if is(s) {
			return yes
		}

		return no
	}, branches...)
}

// choice is any other question.
func choice(name, question string, ask func(State) string, branches ...branch) node {
	return node{name: name, question: question, ask: ask, branches: branches}
}

func found(state State) string { return state.Found.String() }

// anyPatch is error before true: no patch is sent while one of the gates has failed.
func anyPatch(state State) Value {
	for _, value := range []Value{Error, True, False} {
		if slices.Contains(state.Patch, value) {
			return value
		}
	}

	return Unset
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
	return []node{
		check(root, "was the object detached before?", func(s State) bool { return s.Found == Detached },
			leave(yes, ReasonDetached), to(no, "foreign")),
		check("foreign", "is it somebody else's, and the resource being deleted?",
			func(s State) bool { return s.Found == Unmanaged && s.DeleteEvent },
			leave(yes, ReasonNotManaged), to(no, "detach")),
		gate("detach", "lifecycle.detach.when", False, func(s State) Value { return s.Detach },
			to("true", "detachIt"), fail("error", ReasonGate), to("false", "delete")),
		choice("detachIt", "what is there to detach?", found,
			act("managed", Detach, ReasonDetach), act("deleting", Detach, ReasonDetach),
			leave("absent", ReasonNothingThere), leave("unmanaged", ReasonNotManaged)),
		gate("delete", "lifecycle.delete.when", False, func(s State) Value { return s.Delete },
			to("true", "deleteIt"), fail("error", ReasonGate), to("false", "stale")),
		choice("deleteIt", "what is there to delete?", found,
			act("managed", Delete, ReasonDelete), act("deleting", Delete, ReasonDelete),
			leave("absent", ReasonNothingThere), leave("unmanaged", ReasonNotManaged)),
	}
}

// writing is the part of the tree that a stale event does not reach.
func writing() []node {
	return []node{
		check("stale", "is it managed, and newer than the event?",
			func(s State) bool { return (s.Found == Managed || s.Found == Deleting) && s.Generation > 0 },
			leave(yes, ReasonStale), to(no, "when")),
		gate("when", "when", True, func(s State) Value { return s.When },
			to("true", "exists"), skip("false", ReasonWhen), fail("error", ReasonGate)),
		check("exists", "is there an object?", func(s State) bool { return s.Found != Absent },
			to(yes, "recreate"), to(no, "manifest")),
		gate("recreate", "lifecycle.recreate.when", False, func(s State) Value { return s.Recreate },
			to("true", "mayMake"), fail("error", ReasonGate), to("false", "pending")),
		choice("mayMake", "can it be made anew?", mayMake,
			act(yes, Recreate, ReasonRecreate), skip("still being deleted", ReasonDeletionPending), fail("not ours", ReasonNotManaged)),
		check("pending", "is it being deleted?", func(s State) bool { return s.Found == Deleting },
			skip(yes, ReasonDeletionPending), to(no, "patch")),
		gate("patch", "any of lifecycle.patch[].when", False, anyPatch,
			to("true", "mayPatch"), fail("error", ReasonGate), to("false", "manifest")),
		check("mayPatch", "is it ours to patch?", func(s State) bool { return s.Found == Managed },
			act(yes, Patch, ReasonPatch), fail(no, ReasonNotManaged)),
		check("manifest", "is there a manifest?", func(s State) bool { return !s.PatchOnly },
			to(yes, "apply"), skip(no, ReasonNoManifest)),
		gate("apply", "lifecycle.apply.when", True, func(s State) Value { return s.Apply },
			to("true", "outdated"), skip("false", ReasonApplyWhen), fail("error", ReasonGate)),
		choice("outdated", "which generation is there?", outdated,
			act("none", Apply, ReasonCreate), act("an older one", Apply, ReasonGeneration),
			skip("the event's", ReasonUnchanged), fail("not ours", ReasonNotManaged)),
	}
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
	case state.Generation == 0:
		return "the event's"
	default:
		return "an older one"
	}
}
