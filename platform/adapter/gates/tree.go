// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package gates

import (
	"slices"
	"sync"
)

// root is the name of the first node.
const root = "detached"

// Answers of yes-or-no questions.
const (
	yes = "yes"
	no  = "no"
)

// Decide walks the tree with a state and returns the decision.
func Decide(state State) Decision {
	nodes := tree()
	current := nodes[root]

	decision := Decision{Path: make([]Step, 0, len(nodes))}

	for {
		answer := current.answer(state)
		decision.Path = append(decision.Path, Step{Question: current.question, Answer: answer})

		if answer == Unset.String() {
			answer = current.unset
		}

		next := current.branches[slices.IndexFunc(current.branches, func(b branch) bool { return b.answer == answer })]
		if next.end == nil {
			current = nodes[next.node]

			continue
		}

		decision.Outcome, decision.Reason = next.end.outcome, next.end.reason
		decision.Actions = next.end.listActions(state)

		return decision
	}
}

type node struct {
	name, question string
	answer         func(State) string
	branches       []branch
	// unset is the answer that replaces Unset, for a gate that the task file does not have.
	unset string
}

// branch leads from an answer to a node or to an end.
type branch struct {
	answer, node string
	end          *end
}

type end struct {
	outcome Outcome
	reason  Reason
	verb    Verb
	// prune adds the action Prune if the entry has a retention.
	prune bool
}

func (e *end) listActions(state State) []Action {
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

	if e.prune && state.HasRetention {
		out = append(out, Action{Verb: Prune})
	}

	return out
}

func branchTo(answer, node string) branch { return branch{answer: answer, node: node} }

// skipAndPrune returns a branch that does not write the object, but prunes earlier versions.
func skipAndPrune(answer string, reason Reason) branch {
	return branch{answer: answer, end: &end{outcome: Skip, reason: reason, prune: true}}
}

// skipAll returns a branch that neither writes nor prunes. A stale event must not prune, because
// the versions that it would treat as earlier versions may be newer than the event.
func skipAll(answer string, reason Reason) branch {
	return branch{answer: answer, end: &end{outcome: Skip, reason: reason}}
}

func failWith(answer string, reason Reason) branch {
	return branch{answer: answer, end: &end{outcome: Fail, reason: reason}}
}

func actWith(answer string, verb Verb, reason Reason) branch {
	prune := verb != Detach && verb != Delete

	return branch{answer: answer, end: &end{outcome: Act, reason: reason, verb: verb, prune: prune}}
}

func gateNode(name, question string, unset Value, valueOf func(State) Value, branches ...branch) node {
	return node{name, question, func(s State) string { return valueOf(s).String() }, branches, unset.String()}
}

func boolNode(name, question string, holds func(State) bool, branches ...branch) node {
	return choiceNode(name, question, func(s State) string {
		if holds(s) {
			return yes
		}

		return no
	}, branches...)
}

// choiceNode returns a node that branches on any other answer.
func choiceNode(name, question string, choose func(State) string, branches ...branch) node {
	return node{name: name, question: question, answer: choose, branches: branches}
}

func objectState(state State) string { return state.Object.String() }

// combinePatchGates combines the gates of all patches. It returns Error before True, so that no patch
// is sent if one of the gates has failed.
func combinePatchGates(state State) Value {
	for _, value := range []Value{Error, True, False} {
		if slices.Contains(state.Patch, value) {
			return value
		}
	}

	return Unset
}

// tree returns the decision tree. The error of any gate that is reached ends the walk.
//
//nolint:gochecknoglobals // created once and never changed: each event walks the tree for each object
var tree = sync.OnceValue(func() map[string]node {
	nodes := append(removalNodes(), writeNodes()...)
	out := make(map[string]node, len(nodes))

	for _, n := range nodes {
		out[n.name] = n
	}

	return out
})

// removalNodes returns the part of the tree before when: detach and delete.
func removalNodes() []node {
	return []node{
		boolNode(root, "was the object detached before?",
			func(s State) bool { return s.Object == Detached || s.Object == DetachedUnproven },
			branchTo(yes, "released"), branchTo(no, "unproven")),
		boolNode("released", "is the detachment proven, and is the resource being deleted?",
			func(s State) bool { return s.Object == Detached && s.ResourceDeleting },
			skipAll(yes, ReasonDetached), branchTo(no, "stillDetached")),
		gateNode("stillDetached", "lifecycle.detach.when", False, func(s State) Value { return s.Detach },
			skipAll("true", ReasonDetached), failWith("error", ReasonGate), failWith("false", ReasonDetached)),
		boolNode("unproven", "does the object have marks of this adapter, but no valid identity?",
			func(s State) bool { return s.Object == Unproven },
			failWith(yes, ReasonUnproven), branchTo(no, "foreign")),
		boolNode("foreign", "is the object unmanaged, and is the resource being deleted?",
			func(s State) bool { return s.Object == Unmanaged && s.ResourceDeleting },
			skipAll(yes, ReasonNotManaged), branchTo(no, "detach")),
		gateNode("detach", "lifecycle.detach.when", False, func(s State) Value { return s.Detach },
			branchTo("true", "detachIt"), failWith("error", ReasonGate), branchTo("false", "delete")),
		choiceNode("detachIt", "in which state is the object to detach?", objectState,
			actWith("managed", Detach, ReasonDetach), actWith("deleting", Detach, ReasonDetach),
			skipAll("absent", ReasonObjectNotFound), skipAll("unmanaged", ReasonNotManaged)),
		gateNode("delete", "lifecycle.delete.when", False, func(s State) Value { return s.Delete },
			branchTo("true", "deleteIt"), failWith("error", ReasonGate), branchTo("false", "stale")),
		choiceNode("deleteIt", "in which state is the object to delete?", objectState,
			actWith("managed", Delete, ReasonDelete), actWith("deleting", Delete, ReasonDelete),
			skipAll("absent", ReasonObjectNotFound), skipAll("unmanaged", ReasonNotManaged)),
	}
}

// writeNodes returns the part of the tree that a stale event does not reach, after the check for
// stale events.
func writeNodes() []node {
	return []node{
		boolNode("stale", "does the resource in the API have another generation than the event?",
			func(s State) bool { return s.Stale },
			skipAll(yes, ReasonStale), branchTo(no, "when")),
		gateNode("when", "when", True, func(s State) Value { return s.When },
			branchTo("true", "exists"), skipAndPrune("false", ReasonWhen), failWith("error", ReasonGate)),
		boolNode("exists", "does the object exist?", func(s State) bool { return s.Object != Absent },
			branchTo(yes, "recreate"), branchTo(no, "manifest")),
		gateNode("recreate", "lifecycle.recreate.when", False, func(s State) Value { return s.Recreate },
			branchTo("true", "canRecreate"), failWith("error", ReasonGate), branchTo("false", "pending")),
		choiceNode("canRecreate", "can the object be recreated?", canRecreate,
			actWith(yes, Recreate, ReasonRecreate), skipAndPrune("still being deleted", ReasonDeletionPending),
			failWith("unmanaged", ReasonNotManaged)),
		boolNode("pending", "is the object being deleted?", func(s State) bool { return s.Object == Deleting },
			skipAndPrune(yes, ReasonDeletionPending), branchTo(no, "patch")),
		gateNode("patch", "any of lifecycle.patch[].when", False, combinePatchGates,
			branchTo("true", "canPatch"), failWith("error", ReasonGate), branchTo("false", "manifest")),
		boolNode("canPatch", "is the object managed?", func(s State) bool { return s.Object == Managed },
			actWith(yes, Patch, ReasonPatch), failWith(no, ReasonNotManaged)),
		boolNode("manifest", "does the entry have a manifest?", func(s State) bool { return !s.PatchOnly },
			branchTo(yes, "apply"), skipAndPrune(no, ReasonNoManifest)),
		gateNode("apply", "lifecycle.apply.when", True, func(s State) Value { return s.Apply },
			branchTo("true", "outdated"), skipAndPrune("false", ReasonApplyWhen), failWith("error", ReasonGate)),
		choiceNode("outdated", "which content was the object applied with?", appliedContent,
			actWith("none", Apply, ReasonCreate), actWith("that of an older generation", Apply, ReasonGeneration),
			actWith("another, or it is not proven", Apply, ReasonContent),
			skipAndPrune("the manifest's, for this generation", ReasonUnchanged), failWith("unmanaged", ReasonNotManaged)),
	}
}

func canRecreate(state State) string {
	switch {
	case state.Object == Unmanaged:
		return "unmanaged"
	case state.Object == Deleting && !state.HasRetention:
		return "still being deleted"
	default:
		return yes
	}
}

func appliedContent(state State) string {
	switch {
	case state.Object == Absent:
		return "none"
	case state.Object == Unmanaged:
		return "unmanaged"
	case state.Content == Older:
		return "that of an older generation"
	case state.Content == Changed:
		return "another, or it is not proven"
	default:
		return "the manifest's, for this generation"
	}
}
