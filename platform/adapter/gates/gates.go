// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package gates

import "slices"

// Value is the value of a gate's expression.
type Value int

// Values of gates. Unset means that the task file does not have the gate. It counts as false for
// detach, delete and recreate, and as true for when and apply.when.
const (
	Unset Value = iota
	False
	True
	Error
)

// String returns the value as it appears in traces.
func (v Value) String() string { return [...]string{"not set", "false", "true", "error"}[v] }

// ValueOf returns the value for the result of an evaluation.
func ValueOf(result bool, err error) Value {
	switch {
	case err != nil:
		return Error
	case result:
		return True
	default:
		return False
	}
}

// ObjectState is the state of the object that discovery has found.
type ObjectState int

// States of objects.
const (
	// Absent means that there is no object.
	Absent ObjectState = iota
	// Managed means that the object has this adapter's label.
	Managed
	// Deleting means that the object is managed and is being deleted.
	Deleting
	// Detached means that this adapter has detached the object, as the object's annotations prove.
	Detached
	// DetachedUnproven means that the object has the annotation of a detached object, without a proof.
	DetachedUnproven
	// Unproven means that the object has marks of this adapter, and nothing proves that it is its object. Somebody
	// may have edited the marks.
	Unproven
	// Unmanaged means that the object has another adapter's label, or that it has no marks of an adapter.
	Unmanaged
)

// String returns the state as it appears in traces.
func (f ObjectState) String() string {
	return [...]string{"absent", "managed", "deleting", "detached", "detached, unproven", "unproven", "unmanaged"}[f]
}

// Content compares two contents of a managed object: the content that it was applied with, which its marks
// prove, and the content that the manifest has now.
type Content int

// Values of Content.
const (
	// Current means that the object has the content of the manifest, and was applied for the generation of the event.
	Current Content = iota
	// Older means that the object was applied for an older generation.
	Older
	// Changed means that the object has the event's generation or a later one, and the marks do not prove that it has
	// the content of the manifest.
	Changed
)

// State is the complete input of a decision.
type State struct {
	Object ObjectState
	// Content is the content of a managed object. Decide uses it only for a managed object.
	Content Content
	// Stale is true if the resource in the API does not have the event's generation, and the object is newer than
	// the event.
	Stale bool
	// ResourceDeleting is true if the API's resource is being deleted.
	ResourceDeleting bool
	// HasRetention is true if the entry has a retention. Recreate then creates a new object and
	// keeps the existing one.
	HasRetention bool
	// PatchOnly is true if the entry has no manifest.
	PatchOnly bool

	Detach, Delete, When, Recreate, Apply Value
	// Patch are the values of the gates of lifecycle.patch, in the order of the file.
	Patch []Value
}

// Verb is an operation on an object.
type Verb string

// Verbs of actions.
const (
	// Detach removes the management labels from all versions.
	Detach Verb = "detach"
	// Delete deletes all versions.
	Delete Verb = "delete"
	// Recreate deletes the object, and creates it when it no longer exists. With a retention,
	// Recreate only creates a new object.
	Recreate Verb = "recreate"
	// Patch merges one document into the object.
	Patch Verb = "patch"
	// Apply creates or updates the object.
	Apply Verb = "apply"
	// Prune deletes earlier versions that the retention does not keep.
	Prune Verb = "prune"
)

// Action is one operation of a decision.
type Action struct {
	Verb Verb
	// Index is the index in lifecycle.patch. It is used only by Patch.
	Index int
}

// Outcome is the kind of result of a decision.
type Outcome string

// Outcomes of decisions.
const (
	// Act means that the adapter has to write the object.
	Act Outcome = "act"
	// Skip means that nothing has to be written and nothing has failed.
	Skip Outcome = "skip"
	// Fail means that the resource has failed and nothing is written.
	Fail Outcome = "fail"
)

// Reason is the reason of a decision in one word.
type Reason string

// Reasons of decisions. The reason of Act is the gate or the comparison that led to the decision.
const (
	ReasonDetach   Reason = "DetachGate"
	ReasonDelete   Reason = "DeleteGate"
	ReasonRecreate Reason = "RecreateGate"
	ReasonPatch    Reason = "PatchGate"
	// ReasonCreate means that the object does not exist.
	ReasonCreate Reason = "Absent"
	// ReasonGeneration means that the object is older than the event or has no generation.
	ReasonGeneration Reason = "GenerationChanged"
	// ReasonContent means that the object has the event's generation or a later one, with another content or with
	// marks that were edited.
	ReasonContent Reason = "ContentChanged"

	// ReasonDetached means that the object was detached before. The decision fails if the adapter should manage it.
	ReasonDetached Reason = "Detached"
	// ReasonUnproven means that nothing proves that an object with marks of this adapter is its object.
	ReasonUnproven Reason = "Unproven"
	// ReasonNotManaged means that this adapter does not manage the object.
	ReasonNotManaged Reason = "NotManaged"
	// ReasonObjectNotFound means that there is no object to detach or delete.
	ReasonObjectNotFound Reason = "ObjectNotFound"
	// ReasonDeletionPending means that the object is still being deleted. A later event continues.
	ReasonDeletionPending Reason = "DeletionPending"
	// ReasonWhen means that the resource's when is false.
	ReasonWhen Reason = "WhenFalse"
	// ReasonApplyWhen means that lifecycle.apply.when is false.
	ReasonApplyWhen Reason = "ApplyWhenFalse"
	// ReasonNoManifest means that no gate of a patch is true and the entry has no manifest.
	ReasonNoManifest Reason = "NothingToApply"
	// ReasonUnchanged means that the object was applied for the event's generation, with the content of the manifest.
	ReasonUnchanged Reason = "GenerationUnchanged"
	// ReasonStale means that the resource in the API has another generation than the event. Nothing is reported.
	ReasonStale Reason = "Stale"
	// ReasonGate means that an expression has failed.
	ReasonGate Reason = "GateFailed"
)

// Decision is the result of Decide.
type Decision struct {
	Outcome Outcome
	Reason  Reason
	// Actions are the operations in their order. Skip has no action except Prune, and Fail has none.
	Actions []Action
	// Path is the path through the tree: the questions and their answers.
	Path []Step
}

// Step is one question of the tree and its answer.
type Step struct {
	Question string `json:"question"`
	Answer   string `json:"answer"`
}

// HasAction reports whether the decision has an action with the verb.
func (d Decision) HasAction(verb Verb) bool {
	return slices.ContainsFunc(d.Actions, func(a Action) bool { return a.Verb == verb })
}
