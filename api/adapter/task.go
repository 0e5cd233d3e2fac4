// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package adapter

// Task is a task file. It defines what an adapter does with each event. The phases run in the order of
// the fields.
type Task struct {
	// Params are values from the event, the environment, files, API calls or CEL expressions. They are
	// evaluated in order, and each may use those before it.
	Params []Param `yaml:"params"`
	// Preconditions are checked in order. If one is not met, the later ones are not checked, the
	// resources are not changed, and the post phase runs.
	Preconditions []Precondition `yaml:"preconditions"`
	// Resources are the objects that the adapter manages, in the order in which they are handled.
	Resources []Resource `yaml:"resources"`
	// Post is the phase that reports the result. It always runs.
	Post Post `yaml:"post"`
}

// Param is a named value.
type Param struct {
	// Name is the name of the value in CEL expressions and templates.
	Name string `yaml:"name"`
	// Source is a string (event.PATH, env.NAME, config.PATH, PARAM.PATH) or an object with exactly one of
	// api_call, expression, file. Type: string or Source.
	Source any `yaml:"source"`
	// Type is the type to which strings and file contents are converted: string, int, int64, float,
	// float64, bool.
	Type string `yaml:"type"`
	// Required is true if the event fails without a value.
	Required bool `yaml:"required"`
	// Default is the value that is used if there is none.
	Default any `yaml:"default"`
	// Description is a description for readers of the file.
	Description string `yaml:"description"`
}

// Source is the source of a value that is not a path. Exactly one field must be set.
type Source struct {
	// APICall is a request. The value is its response.
	APICall *APICall `yaml:"api_call"`
	// Expression is a CEL expression for the value.
	Expression string `yaml:"expression"`
	// File is a file with the value. It is read again for each event.
	File *FileSource `yaml:"file"`
}

// FileSource is a file that is read again for each event.
type FileSource struct {
	// Path is the path of a file of at most 1 MiB.
	Path string `yaml:"path"`
	// Trim is true to remove white space at both ends. Default: true.
	Trim *bool `yaml:"trim"`
}

// APICall is an HTTP request.
type APICall struct {
	// Method is the HTTP method: GET, POST, PUT, PATCH or DELETE.
	Method string `yaml:"method"`
	// URL is a template for the URL. A relative URL is relative to the fleet API's root,
	// /api/hyperfleet/v1/.
	URL string `yaml:"url"`
	// Timeout is the timeout of one attempt, for example 10s.
	Timeout string `yaml:"timeout"`
	// RetryAttempts is the maximum number of attempts, at most 10. Network errors and the status codes
	// 408, 429 and 5xx are retried.
	RetryAttempts *int `yaml:"retry_attempts"`
	// RetryBackoff is the back-off strategy: exponential, linear or constant.
	RetryBackoff string `yaml:"retry_backoff"`
	// Headers are request headers. Their values are templates.
	Headers []Header `yaml:"headers"`
	// Body is a template for the request body.
	Body string `yaml:"body"`
}

// Header is an HTTP header.
type Header struct {
	// Name is the name of the header.
	Name string `yaml:"name"`
	// Value is a template for the value.
	Value string `yaml:"value"`
}

// Precondition is a condition that must be met before resources are changed. At least one of api_call,
// conditions and expression must be set.
type Precondition struct {
	// Name is the name of the response of api_call in CEL expressions and templates.
	Name string `yaml:"name"`
	// APICall is a request for the data that is checked.
	APICall *APICall `yaml:"api_call"`
	// Capture is a list of values of the response that become params.
	Capture []Capture `yaml:"capture"`
	// Conditions are conditions that must all be met.
	Conditions []Condition `yaml:"conditions"`
	// Expression is a CEL expression that must be true.
	Expression string `yaml:"expression"`
	// Log is a log line that is written after the check.
	Log *Log `yaml:"log"`
	// Type is deprecated. Use api_call instead. If it is `hyperfleet_api`, the precondition reads the
	// resource of the kind `resource` with the ID `id`. `output_param` is the name of the response.
	Type string `yaml:"type"`
	// Resource is deprecated. It is the kind of the resource to read if `type` is set.
	Resource string `yaml:"resource"`
	// ID is deprecated. It is a template for the ID of the resource to read if `type` is set.
	ID string `yaml:"id"`
	// OutputParam is deprecated. It is the name of the response in CEL expressions and templates if `type`
	// is set.
	OutputParam string `yaml:"output_param"`
}

// Capture is one value of a response. Exactly one of field and expression must be set.
type Capture struct {
	// Name is the name of the value in CEL expressions and templates.
	Name string `yaml:"name"`
	// Field is the path of the value in the response.
	Field string `yaml:"field"`
	// Expression is a CEL expression over response and the other variables.
	Expression string `yaml:"expression"`
	// Default is the value that is used if there is none.
	Default any `yaml:"default"`
}

// Condition compares a field with a value.
type Condition struct {
	// Field is the path of a value in params.
	Field string `yaml:"field"`
	// Operator is the comparison: equals, notEquals, in, notIn, contains, greaterThan,
	// greaterThanOrEqual, lessThan, lessThanOrEqual, exists or notExists.
	Operator string `yaml:"operator"`
	// Value is the value with which the field is compared.
	Value any `yaml:"value"`
	// Values are the values for in and notIn.
	Values []any `yaml:"values"`
}

// Log is a log line.
type Log struct {
	// Message is a template for the message.
	Message string `yaml:"message"`
	// Level is the level: debug, info, warning or error.
	Level string `yaml:"level"`
}

// When is a gate: a CEL expression that decides whether an operation or action runs. An error in the
// expression is a failure, and does not count as false.
type When struct {
	// Expression is a CEL expression that returns a bool.
	Expression string `yaml:"expression"`
}

// Resource is an object that the adapter manages.
type Resource struct {
	// Name is the name of the object in CEL expressions: resources.NAME. It has letters, digits and _,
	// begins with a lower-case letter, and must be unique in the file.
	Name string `yaml:"name"`
	// Alias is a deprecated alias of name.
	Alias string `yaml:"alias"`
	// When is the gate of apply, patch and recreate: if it is false, none of them runs. It does not affect
	// detach, delete and pruning.
	When *When `yaml:"when"`
	// Transport is the way in which the object is written.
	Transport Transport `yaml:"transport"`
	// Manifest is an object, a block string that is YAML after rendering, or {ref: PATH} for a file next
	// to the task file. Every string in it is a template. It can be omitted if only lifecycle.patch
	// writes the object.
	Manifest any `yaml:"manifest"`
	// Discovery is the lookup of the object. Required.
	Discovery *Discovery `yaml:"discovery"`
	// NestedDiscoveries are lookups of objects inside a ManifestWork.
	NestedDiscoveries []NestedDiscovery `yaml:"nested_discoveries"`
	// Owner is an earlier entry whose object becomes the owner of this object.
	Owner *Owner `yaml:"owner"`
	// Retention is the retention policy for previous objects of this entry.
	Retention *Retention `yaml:"retention"`
	// RecreateOnChange is deprecated. Use lifecycle.recreate.when.
	RecreateOnChange bool `yaml:"recreate_on_change"`
	// Lifecycle is a set of gates, one for each operation on the object.
	Lifecycle *Lifecycle `yaml:"lifecycle"`
}

// Transport defines how an object is written.
type Transport struct {
	// Client is the transport: kubernetes (to the API server) or maestro (inside a ManifestWork). Default:
	// kubernetes.
	Client  string            `yaml:"client"`
	Maestro *MaestroTransport `yaml:"maestro"`
}

// MaestroTransport configures the transport maestro, which writes the object inside a ManifestWork.
type MaestroTransport struct {
	// TargetCluster is a template for the name of the cluster (Maestro's consumer) to which the ManifestWork
	// is sent.
	TargetCluster string `yaml:"target_cluster"`
}

// Discovery looks up objects. Exactly one of by_name and by_selectors must be set.
type Discovery struct {
	// APIVersion is the API version of the objects, if there is no manifest. It is not a template.
	APIVersion string `yaml:"api_version"`
	// Kind is the kind of the objects. It is used with api_version.
	Kind string `yaml:"kind"`
	// Namespace is a template for the namespace. For cluster-scoped objects, and to look up objects in
	// all namespaces by labels, it is empty or *.
	Namespace string `yaml:"namespace"`
	// ByName is a template for the name of the object.
	ByName string `yaml:"by_name"`
	// BySelectors is a lookup by labels. If several objects match, the one that was applied for the
	// generation of the event is used, or the newest one if there is none.
	BySelectors *Selectors `yaml:"by_selectors"`
}

// Selectors are labels whose values are templates.
type Selectors struct {
	// LabelSelector is a map of labels that must all match. The values are templates.
	LabelSelector map[string]string `yaml:"label_selector"`
}

// NestedDiscovery looks up one of the manifests inside a ManifestWork. The manifest is available as
// resources.NAME.
type NestedDiscovery struct {
	// Name is the name of the object in CEL expressions. It must be unique among resources and nested
	// discoveries.
	Name      string    `yaml:"name"`
	Discovery Discovery `yaml:"discovery"`
}

// Owner names an earlier entry of resources.
type Owner struct {
	// Resource is the name of the entry. Both entries must have transport kubernetes.
	Resource string `yaml:"resource"`
}

// Retention defines which previous objects are kept. With retention, recreate creates a new object and
// keeps the previous ones, so the name in the manifest must vary. A previous object is deleted if any of
// the rules applies. The current object is never deleted.
type Retention struct {
	// HistoryLimit is the maximum number of previous objects. If it is not set, the number is not
	// limited.
	HistoryLimit *int `yaml:"historyLimit"`
	// TTL is the maximum age of a previous object, for example 48h. If it is not set, the age is not
	// limited.
	TTL string `yaml:"ttl"`
	// Expression is a CEL expression over item, items and itemIndex (0 is the newest previous object). If
	// it is true, the item is deleted.
	Expression string `yaml:"expression"`
}

// Lifecycle defines the gates of the operations on an object. They are checked in this order: detach,
// delete, the resource's own `when`, recreate, patch, apply.
type Lifecycle struct {
	// Create is deprecated. Use apply instead. It is the gate of apply for an object that does not exist
	// yet.
	Create *Gate `yaml:"create"`
	// Apply is the gate of apply. If it is not set, apply runs.
	Apply *Gate `yaml:"apply"`
	// Patch is a list of merge patches (RFC 7396) for the existing object. The patches whose gate is true
	// are applied in order. If any patch is applied, apply does not run.
	Patch []Patch `yaml:"patch"`
	// Detach is the gate of detach, which removes the management labels from the object. The adapter no
	// longer manages the object.
	Detach *Gate `yaml:"detach"`
	// Orphan is a deprecated alias of detach.
	Orphan *Gate `yaml:"orphan"`
	// Recreate is the gate of recreate, which deletes the object and creates it again. With retention,
	// recreate creates a new object and keeps the previous one.
	Recreate *Gate `yaml:"recreate"`
	// Delete is the gate of delete, which deletes the object.
	Delete *Delete `yaml:"delete"`
}

// Gate is the gate of an operation that has no other settings.
type Gate struct {
	When When `yaml:"when"`
}

// Patch is a merge patch with a gate.
type Patch struct {
	When When `yaml:"when"`
	// Document is the merge patch. Its strings are templates, and null removes a field.
	Document map[string]any `yaml:"document"`
}

// Delete is the gate and the settings of delete.
type Delete struct {
	When When `yaml:"when"`
	// PropagationPolicy is the propagation policy: Background, Foreground or Orphan. Default: Background.
	PropagationPolicy string `yaml:"propagationPolicy"`
}

// Post is the last phase.
type Post struct {
	// Payloads are built before the actions run.
	Payloads []Payload `yaml:"payloads"`
	// PostActions are run in order. If one fails, the later ones do not run.
	PostActions []PostAction `yaml:"post_actions"`
}

// Payload is the JSON body of an action. Exactly one of build and build_ref must be set.
type Payload struct {
	// Name is the name with which the templates of actions refer to the payload, as a JSON string.
	Name string `yaml:"name"`
	// When is the gate of the payload. If it is false, the payload and the actions that use it are skipped.
	When *When `yaml:"when"`
	// Build is an object. Its leaves are template strings, literals, {field: PATH, default: X} or
	// {expression: CEL, default: X}.
	Build any `yaml:"build"`
	// BuildRef is the path of a file with such an object, next to the task file.
	BuildRef string `yaml:"build_ref"`
}

// PostAction is an API call or a log line.
type PostAction struct {
	// Name is the name of the action in logs and traces.
	Name string `yaml:"name"`
	// When is the gate of the action. If it is false, the action is skipped.
	When    *When    `yaml:"when"`
	APICall *APICall `yaml:"api_call"`
	Log     *Log     `yaml:"log"`
}
