// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package gates

import "slices"

// Value is what a gate's expression gave.
type Value int

// Values. Unset is a gate that the task file does not have: it is as false for detach,
// delete and recreate, and as true for when and apply.when.
const (
	Unset Value = iota
	False
	True
	Error
)

// String is the value in words.
func (v Value) String() string { return [...]string{"not set", "false", "true", "error"}[v] }

// Of is the value of an evaluation.
func Of(yes bool, err error) Value {
	switch {
	case err != nil:
		return Error
	case yes:
		return True
	default:
		return False
	}
}

// Found is what discovery has found.
type Found int

// Found states.
const (
	// Absent: there is no object.
	Absent Found = iota
	// Managed: the object bears this adapter's label.
	Managed
	// Deleting: it is managed, and being deleted already.
	Deleting
	// Detached: it was managed once: it has the generation's annotation, and no
	// adapter's label.
	Detached
	// Unmanaged: it is somebody else's: it has another adapter's label, or no trace of
	// any.
	Unmanaged
)

// String is the state in words.
func (f Found) String() string {
	return [...]string{"absent", "managed", "deleting", "detached", "unmanaged"}[f]
}

// State is all that a decision depends on.
type State struct {
	Found Found
	// Generation compares the one that the object was applied for (of several versions, the
	// newest) with the event's: -1 for an older one or none, 0 for the same, 1 for a newer
	// one. It is looked at where a managed object was found.
	Generation int
	// DeleteEvent says that the API's resource is being deleted.
	DeleteEvent bool
	// Retain says that the resource has a retention: recreating makes an object beside
	// the one that is there.
	Retain bool
	// PatchOnly says that the resource has no manifest.
	PatchOnly bool

	Detach, Delete, When, Recreate, Apply Value
	// Patch are the gates of lifecycle.patch, in its order.
	Patch []Value
}

// Verb is what is done to an object.
type Verb string

// Verbs.
const (
	// Detach takes the management labels off all versions.
	Detach Verb = "detach"
	// Delete deletes all versions.
	Delete Verb = "delete"
	// Recreate deletes the object, and creates it once it is gone; with a retention it
	// creates one beside it.
	Recreate Verb = "recreate"
	// Patch merges one document into the object.
	Patch Verb = "patch"
	// Apply creates or changes the object.
	Apply Verb = "apply"
	// Prune removes earlier versions that the retention does not keep.
	Prune Verb = "prune"
)

// Action is one thing to do.
type Action struct {
	Verb Verb
	// Index of the entry of lifecycle.patch.
	Index int
}

// Outcome says how the decision ended.
type Outcome string

// Outcomes.
const (
	// Act: there is something to write.
	Act Outcome = "act"
	// Skip: there is nothing to write, and nothing wrong.
	Skip Outcome = "skip"
	// Fail: the resource has failed, and nothing is written.
	Fail Outcome = "fail"
)

// Reason says why a decision ended as it did, in one word.
type Reason string

// Reasons. Those of Act are the gate that led there.
const (
	ReasonDetach   Reason = "DetachGate"
	ReasonDelete   Reason = "DeleteGate"
	ReasonRecreate Reason = "RecreateGate"
	ReasonPatch    Reason = "PatchGate"
	// ReasonCreate: there is no object yet.
	ReasonCreate Reason = "Absent"
	// ReasonGeneration: the object is older than the event, or does not say.
	ReasonGeneration Reason = "GenerationChanged"

	// ReasonDetached: the object was handed over.
	ReasonDetached Reason = "Detached"
	// ReasonNotManaged: the object is somebody else's.
	ReasonNotManaged Reason = "NotManaged"
	// ReasonNothingThere: there is nothing to detach or delete.
	ReasonNothingThere Reason = "NothingThere"
	// ReasonDeletionPending: the object is still being deleted; a later event goes on.
	ReasonDeletionPending Reason = "DeletionPending"
	// ReasonWhen: the resource's when is false.
	ReasonWhen Reason = "WhenFalse"
	// ReasonApplyWhen: lifecycle.apply.when is false.
	ReasonApplyWhen Reason = "ApplyWhenFalse"
	// ReasonNoManifest: no patch was wanted, and there is no manifest.
	ReasonNoManifest Reason = "NothingToApply"
	// ReasonUnchanged: the object was applied for this generation.
	ReasonUnchanged Reason = "GenerationUnchanged"
	// ReasonStale: the object is newer than the event.
	ReasonStale Reason = "Stale"
	// ReasonGate: an expression has failed.
	ReasonGate Reason = "GateFailed"
)

// Decision is what is to be done.
type Decision struct {
	Outcome Outcome
	Reason  Reason
	// Actions in their order; without those of Prune none for Skip, and none at all for
	// Fail.
	Actions []Action
	// Path are the questions that were asked, with their answers: the way through the
	// tree.
	Path []Step
}

// Step is one question and its answer.
type Step struct {
	Question string `json:"question"`
	Answer   string `json:"answer"`
}

// Has says whether something is to be done.
func (d Decision) Has(verb Verb) bool {
	return slices.ContainsFunc(d.Actions, func(a Action) bool { return a.Verb == verb })
}

// Decide says what is to be done.
func Decide(state State) Decision {
	nodes := tree()
	at := nodes[root]

	decision := Decision{Path: make([]Step, 0, len(nodes))}

	for {
		answer := at.ask(state)
		decision.Path = append(decision.Path, Step{Question: at.question, Answer: answer})

		if answer == Unset.String() {
			answer = at.unset
		}

		next := at.branches[slices.IndexFunc(at.branches, func(b branch) bool { return b.answer == answer })]
		if next.end == nil {
			at = nodes[next.to]

			continue
		}

		decision.Outcome, decision.Reason = next.end.outcome, next.end.reason
		decision.Actions = next.end.actions(state)

		return decision
	}
}
