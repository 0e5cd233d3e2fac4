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

// Task is a task file that was checked, with everything compiled. It does not change and
// is safe for concurrent use.
type Task struct {
	// Spec is the file as it was read; old names stand where they stood.
	Spec          adapter.Task
	Params        []Param
	Preconditions []Precondition
	Resources     []Resource
	Payloads      []Payload
	Actions       []PostAction
	// Warnings are what works, and should be written in another way.
	Warnings strictyaml.Problems
}

// Param is one value to take. Exactly one of Path, APICall, Expression and File is set.
type Param struct {
	Name string
	// Type converts texts: see Convert.
	Type       string
	Required   bool
	Default    any
	Path       *Path
	APICall    *APICall
	Expression *cel.Program
	File       *adapter.FileSource
}

// APICall is one HTTP request. What is zero is the deployment's.
type APICall struct {
	Method  string
	URL     *Template
	Timeout time.Duration
	// Attempts is the number of tries.
	Attempts int
	// Backoff is exponential, linear or constant.
	Backoff string
	Headers []Header
	// Body may be nil.
	Body *Template
}

// Header is one HTTP header.
type Header struct {
	Name  string
	Value *Template
}

// Precondition is what has to hold. It holds if all its Conditions do, and Expression,
// where there is one.
type Precondition struct {
	Name string
	// APICall's answer is the variable of the precondition's name.
	APICall    *APICall
	Capture    []Capture
	Conditions []Condition
	Expression *cel.Program
	Log        *Log
}

// Capture takes a value out of the answer. Exactly one of Field and Expression is set.
type Capture struct {
	Name string
	// Field is a path into the answer: cel.Dig.
	Field string
	// Expression sees the answer as response, beside the other variables.
	Expression *cel.Program
	Default    any
}

// Log is a line to write.
type Log struct {
	Message *Template
	Level   slog.Level
}

// Resource is one object to keep.
type Resource struct {
	Name string
	// Transport is transport.Kubernetes or transport.Maestro.
	Transport string
	// TargetCluster is set for Maestro.
	TargetCluster *Template
	// Manifest is nil where patches alone write.
	Manifest  *Manifest
	Discovery Discovery
	Nested    []Nested
	// Owner is the name of an earlier entry, or empty.
	Owner     string
	Retention *Retention
	// Gates; nil where the file has none.
	When, Detach, Delete, Recreate, Apply *cel.Program
	Patches                               []Patch
	// PropagationPolicy is Background, Foreground or Orphan.
	PropagationPolicy string
}

// Discovery finds objects: by name, or by labels.
type Discovery struct {
	// APIVersion and Kind of what is found; empty where the manifest says them.
	APIVersion, Kind string
	// Namespace is nil for objects without one.
	Namespace *Template
	// ByName is nil where Labels are set.
	ByName *Template
	Labels map[string]*Template
}

// Nested is an object inside a ManifestWork.
type Nested struct {
	Name      string
	Discovery Discovery
}

// Retention says which earlier versions stay.
type Retention struct {
	// HistoryLimit is nil for any number.
	HistoryLimit *int
	// TTL is 0 for any age.
	TTL time.Duration
	// Expression sees item, items and itemIndex, beside the other variables; nil where
	// there is none.
	Expression *cel.Program
}

// Patch is one gated merge patch.
type Patch struct {
	When     *cel.Program
	Document *Tree
}

// Payload is JSON to build.
type Payload struct {
	Name string
	// When is nil where there is no gate.
	When  *cel.Program
	Build *Tree
}

// PostAction is a call, a line, or both.
type PostAction struct {
	Name string
	// When is nil where there is no gate.
	When    *cel.Program
	APICall *APICall
	Log     *Log
	// Payloads are the names of those that its templates use: the action is skipped if
	// one of them was.
	Payloads []string
}

// AdapterFields are the fields of the variable adapter.
func AdapterFields() []string {
	return []string{
		"name", "version", "frameworkVersion",
		// executionStatus is success or failed.
		"executionStatus",
		// resourcesSkipped says that a precondition was not met, and skipReason which.
		"resourcesSkipped", "skipReason",
		"errorReason", "errorMessage",
		// executionError is {phase, step, message} or null.
		"executionError",
		// resourceErrors is {NAME: message}.
		"resourceErrors",
		// resourceOutcomes is {NAME: {operation, reason}}.
		"resourceOutcomes",
	}
}
