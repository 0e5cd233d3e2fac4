// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package task

import (
	"log/slog"
	"time"

	"github.com/hyperfleet/hyperfleet/api/adapter"
	"github.com/hyperfleet/hyperfleet/kit/strictyaml"
	"github.com/hyperfleet/hyperfleet/platform/cel"
)

// Task is a validated and compiled task file. It does not change and is safe for concurrent use.
type Task struct {
	// Spec is the decoded file, including deprecated fields.
	Spec          adapter.Task
	Params        []Param
	Preconditions []Precondition
	Resources     []Resource
	Payloads      []Payload
	Actions       []PostAction
	// ReportsFinalized is true if the post phase of the file has the condition Finalized.
	ReportsFinalized bool
	// Digest is that of the file and of the files that it refers to.
	Digest string
	// Warnings are problems that do not prevent the file from loading, such as deprecated fields.
	Warnings strictyaml.Problems
	// reads are the paths below the variable resources that expressions, templates and fields read.
	reads [][]string
}

// Param is one named value. Exactly one of Path, APICall, Expression and File is set.
type Param struct {
	Name string
	// Type is the type that Convert converts a string to.
	Type       string
	Required   bool
	Default    any
	Path       *Path
	APICall    *APICall
	Expression *cel.Program
	File       *adapter.FileSource
}

// APICall is one HTTP request. A zero Timeout, Attempts or Backoff means the value of the
// deployment configuration.
type APICall struct {
	Method  string
	URL     *URL
	Timeout time.Duration
	// Attempts is the maximum number of attempts.
	Attempts int
	// Backoff is exponential, linear or constant.
	Backoff string
	Headers []Header
	// Body may be nil.
	Body *Body
}

// Header is one HTTP header.
type Header struct {
	Name  string
	Value *Template
}

// Precondition is a requirement for the resources phase. It is met if all Conditions are met and
// Expression is true or nil.
type Precondition struct {
	Name string
	// APICall is the request whose response becomes the variable Name.
	APICall    *APICall
	Capture    []Capture
	Conditions []Condition
	Expression *cel.Program
	Log        *Log
}

// Capture reads a value from the response. Exactly one of Field and Expression is set.
type Capture struct {
	Name string
	// Field is a path in the response, which cel.Dig looks up.
	Field string
	// Expression reads the response as the variable response, in addition to the other variables.
	Expression *cel.Program
	Default    any
}

// Log is a log line.
type Log struct {
	Message *Template
	Level   slog.Level
}

// Resource is one entry of resources: an object that the adapter manages.
type Resource struct {
	Name string
	// Transport is transport.Kubernetes or transport.Maestro.
	Transport string
	// TargetCluster is set only for transport Maestro.
	TargetCluster *Template
	// Manifest is nil if the entry has only patches.
	Manifest  *Manifest
	Discovery Discovery
	Nested    []Nested
	// Owner is the name of an earlier entry, or empty.
	Owner     string
	Retention *Retention
	// When, Detach, Delete, Recreate and Apply are the gates. Each is nil if the file does not have it.
	When, Detach, Delete, Recreate, Apply *cel.Program
	Patches                               []Patch
	// NameCanChange is true if the name, namespace or kind depends on a field of the resource that can change.
	NameCanChange bool
	// PropagationPolicy is Background, Foreground or Orphan.
	PropagationPolicy string
}

// Discovery finds objects by name or by labels.
type Discovery struct {
	// APIVersion and Kind are the kind of the objects. Both are empty if only the manifest has them.
	APIVersion, Kind string
	// Namespace is nil for cluster-scoped objects and for objects in any namespace.
	Namespace *Template
	// ByName is nil if Labels is set.
	ByName *Template
	// Labels is by_selectors.label_selector in the task file.
	Labels map[string]*Template

	// lowersName is true if names of the kind have to be lower case.
	lowersName bool
}

// Nested is an object inside a ManifestWork.
type Nested struct {
	Name      string
	Discovery Discovery
}

// Retention selects the previous objects that are kept.
type Retention struct {
	// HistoryLimit is the maximum number of previous objects. Nil means no limit.
	HistoryLimit *int
	// TTL is the maximum age of a previous object. 0 means no limit.
	TTL time.Duration
	// Expression is true for a version to delete. It reads item, items and itemIndex, in addition
	// to the other variables. Nil selects no version.
	Expression *cel.Program
}

// Patch is one gated merge patch.
type Patch struct {
	When     *cel.Program
	Document *Tree
}

// Payload is a JSON document that the post phase builds.
type Payload struct {
	Name string
	// When is nil if the payload has no gate.
	When  *cel.Program
	Build *Tree
}

// PostAction is an API call, a log line, or both.
type PostAction struct {
	Name string
	// When is nil if the action has no gate.
	When    *cel.Program
	APICall *APICall
	Log     *Log
	// Payloads are the names of the payloads that the action's templates use. The action is
	// skipped if one of these payloads is skipped.
	Payloads []string
}

// AdapterFields returns the names of the fields of the variable adapter.
func AdapterFields() []string {
	return []string{
		"name", "version", "frameworkVersion",
		// executionStatus is success or failed.
		"executionStatus",
		// resourcesSkipped is true if a precondition is not met. skipReason names the precondition.
		"resourcesSkipped", "skipReason",
		"errorReason", "errorMessage",
		// executionError is {phase, step, message} or null.
		"executionError",
		// resourceErrors is {NAME: message}.
		"resourceErrors",
		// resourceOutcomes is {NAME: {operation, reason, message, outdated}}.
		"resourceOutcomes",
		// resourcesApplied is false if an entry has failed, or an object does not have the content of its manifest.
		"resourcesApplied",
	}
}
