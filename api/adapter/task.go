// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package adapter

// Task is a task file: what an adapter does with each event. The phases run in the order
// of the fields.
type Task struct {
	// Params are values taken from the event, the environment, files, API calls or CEL,
	// in order; each may use those before it.
	Params []Param `yaml:"params"`
	// Preconditions run in order and stop at the first that is not met; the resources
	// are then left as they are, and the post phase runs.
	Preconditions []Precondition `yaml:"preconditions"`
	// Resources are the objects that the adapter keeps, in the order they are handled.
	Resources []Resource `yaml:"resources"`
	// Post is what is reported at the end, whatever came before.
	Post Post `yaml:"post"`
}

// Param is one named value.
type Param struct {
	// Name is how CEL and templates call it.
	Name string `yaml:"name"`
	// Source is a string (event.PATH, env.NAME, config.PATH, PARAM.PATH) or an object
	// with exactly one of api_call, expression, file. Type: string or Source.
	Source any `yaml:"source"`
	// Type converts strings and files: string, int, int64, float, float64, bool.
	Type string `yaml:"type"`
	// Required ends the event as failed if there is no value.
	Required bool `yaml:"required"`
	// Default stands in for a value that is not there.
	Default any `yaml:"default"`
	// Description is for the reader.
	Description string `yaml:"description"`
}

// Source is where a value comes from, if not from a path. Exactly one field is set.
type Source struct {
	// APICall is a request whose answer is the value.
	APICall *APICall `yaml:"api_call"`
	// Expression is CEL that yields the value.
	Expression string `yaml:"expression"`
	// File is read again for each event.
	File *FileSource `yaml:"file"`
}

// FileSource reads a file again for each event.
type FileSource struct {
	// Path of a file of at most 1 MiB.
	Path string `yaml:"path"`
	// Trim takes white space off both ends. Default: true.
	Trim *bool `yaml:"trim"`
}

// APICall is one HTTP request.
type APICall struct {
	// Method is GET, POST, PUT, PATCH or DELETE.
	Method string `yaml:"method"`
	// URL, a template. A relative one is below the fleet API's root, /api/hyperfleet/v1/.
	URL string `yaml:"url"`
	// Timeout of one try, for example 10s.
	Timeout string `yaml:"timeout"`
	// RetryAttempts is the number of tries, at most 10, on network errors, 408, 429 and 5xx.
	RetryAttempts *int `yaml:"retry_attempts"`
	// RetryBackoff is exponential, linear or constant.
	RetryBackoff string `yaml:"retry_backoff"`
	// Headers, with templates as values.
	Headers []Header `yaml:"headers"`
	// Body, a template.
	Body string `yaml:"body"`
}

// Header is one HTTP header.
type Header struct {
	// Name is the header's name.
	Name string `yaml:"name"`
	// Value is a template.
	Value string `yaml:"value"`
}

// Precondition is what has to hold before resources are touched. At least one of
// api_call, conditions and expression is there.
type Precondition struct {
	// Name is how CEL and templates call the answer of api_call.
	Name string `yaml:"name"`
	// APICall fetches what is looked at.
	APICall *APICall `yaml:"api_call"`
	// Capture takes values out of the answer, as params.
	Capture []Capture `yaml:"capture"`
	// Conditions all hold.
	Conditions []Condition `yaml:"conditions"`
	// Expression is CEL that yields a bool; it has to be true.
	Expression string `yaml:"expression"`
	// Log is written when the precondition was looked at.
	Log *Log `yaml:"log"`
	// Type, hyperfleet_api, makes this an old form of api_call: it gets the resource of
	// the kind that resource names, with the id, and calls the answer output_param.
	Type string `yaml:"type"`
	// Resource is a kind in the old form.
	Resource string `yaml:"resource"`
	// ID is a template in the old form.
	ID string `yaml:"id"`
	// OutputParam is how CEL and templates call the answer in the old form.
	OutputParam string `yaml:"output_param"`
}

// Capture is one value of an answer. Exactly one of field and expression is set.
type Capture struct {
	// Name is how CEL and templates call the value.
	Name string `yaml:"name"`
	// Field is a path into the answer.
	Field string `yaml:"field"`
	// Expression is CEL over response, beside the other variables.
	Expression string `yaml:"expression"`
	// Default stands in for a value that is not there.
	Default any `yaml:"default"`
}

// Condition compares a field.
type Condition struct {
	// Field is a path into params.
	Field string `yaml:"field"`
	// Operator is equals, notEquals, in, notIn, contains, greaterThan, greaterThanOrEqual,
	// lessThan, lessThanOrEqual, exists or notExists.
	Operator string `yaml:"operator"`
	// Value is what the field is compared with.
	Value any `yaml:"value"`
	// Values are those of in and notIn.
	Values []any `yaml:"values"`
}

// Log is one line.
type Log struct {
	// Message, a template.
	Message string `yaml:"message"`
	// Level is debug, info, warning or error.
	Level string `yaml:"level"`
}

// When is a gate: CEL that yields a bool. An expression that errors fails the resource;
// it is never false.
type When struct {
	// Expression is CEL that yields a bool.
	Expression string `yaml:"expression"`
}

// Resource is one object that the adapter keeps.
type Resource struct {
	// Name is how CEL calls the object: resources.NAME. Letters, digits and _,
	// beginning with a small letter; alone in the file.
	Name string `yaml:"name"`
	// Alias is an old name of name.
	Alias string `yaml:"alias"`
	// When gates apply, patch and recreate in this event. Detach, delete and pruning are
	// not gated by it.
	When *When `yaml:"when"`
	// Transport says where the object lives.
	Transport Transport `yaml:"transport"`
	// Manifest is an object, a block string that is YAML after rendering, or {ref: PATH}
	// of a file beside the task file. Every string in it is a template. It may be absent
	// where lifecycle.patch alone writes.
	Manifest any `yaml:"manifest"`
	// Discovery finds the object. Required.
	Discovery *Discovery `yaml:"discovery"`
	// NestedDiscoveries find objects inside a ManifestWork.
	NestedDiscoveries []NestedDiscovery `yaml:"nested_discoveries"`
	// Owner is an earlier entry whose object becomes the owner of this one.
	Owner *Owner `yaml:"owner"`
	// Retention keeps earlier versions of the object.
	Retention *Retention `yaml:"retention"`
	// RecreateOnChange is an old form of lifecycle.recreate.when.
	RecreateOnChange bool `yaml:"recreate_on_change"`
	// Lifecycle gates what happens to the object.
	Lifecycle *Lifecycle `yaml:"lifecycle"`
}

// Transport says where an object lives.
type Transport struct {
	// Client is kubernetes (default) or maestro.
	Client  string            `yaml:"client"`
	Maestro *MaestroTransport `yaml:"maestro"`
}

// MaestroTransport sends ManifestWorks.
type MaestroTransport struct {
	// TargetCluster is the consumer, a template.
	TargetCluster string `yaml:"target_cluster"`
}

// Discovery finds objects. Exactly one of by_name and by_selectors is set.
type Discovery struct {
	// APIVersion of the objects, where there is no manifest to say it; no template.
	APIVersion string `yaml:"api_version"`
	// Kind goes with api_version.
	Kind string `yaml:"kind"`
	// Namespace, a template; empty, or *, for objects that have none, and for those of all
	// namespaces where labels find them.
	Namespace string `yaml:"namespace"`
	// ByName, a template.
	ByName string `yaml:"by_name"`
	// BySelectors finds by labels: of several, the one of the event's generation, else the
	// newest.
	BySelectors *Selectors `yaml:"by_selectors"`
}

// Selectors are labels with templates as values.
type Selectors struct {
	// LabelSelector are labels that all have to match; their values are templates.
	LabelSelector map[string]string `yaml:"label_selector"`
}

// NestedDiscovery finds one of the manifests inside a ManifestWork; it becomes
// resources.NAME.
type NestedDiscovery struct {
	// Name is how CEL calls the object; alone among resources and nested discoveries.
	Name      string    `yaml:"name"`
	Discovery Discovery `yaml:"discovery"`
}

// Owner names an earlier entry of resources.
type Owner struct {
	// Resource is the name of the entry; both are on transport kubernetes.
	Resource string `yaml:"resource"`
}

// Retention keeps earlier versions; recreating then makes a new object beside the old
// ones, and the manifest's name has to vary. A version that is not the current one goes
// when any of the rules says so; the current one never goes.
type Retention struct {
	// HistoryLimit is how many earlier versions stay. Unset: any number.
	HistoryLimit *int `yaml:"historyLimit"`
	// TTL is how old an earlier version may be, for example 48h. Unset: any age.
	TTL string `yaml:"ttl"`
	// Expression is CEL over item, items and itemIndex (0 is the newest earlier version);
	// true removes the item.
	Expression string `yaml:"expression"`
}

// Lifecycle gates what happens to an object. Order: detach, delete, (when), recreate,
// patch, apply.
type Lifecycle struct {
	// Create is an old form of apply, which an object that exists does not heed.
	Create *Gate `yaml:"create"`
	// Apply gates the apply step; unset: it runs.
	Apply *Gate `yaml:"apply"`
	// Patch entries whose gate holds are merge patches (RFC 7396) on the existing object,
	// in order; if any is applied, the apply step is not run.
	Patch []Patch `yaml:"patch"`
	// Detach takes the management labels off the object and leaves it alone for good.
	Detach *Gate `yaml:"detach"`
	// Orphan is an old name of detach.
	Orphan *Gate `yaml:"orphan"`
	// Recreate removes the object and makes it anew; with retention it makes a new one
	// beside it.
	Recreate *Gate `yaml:"recreate"`
	// Delete removes the object.
	Delete *Delete `yaml:"delete"`
}

// Gate is a gate by itself.
type Gate struct {
	When When `yaml:"when"`
}

// Patch is one gated patch.
type Patch struct {
	When When `yaml:"when"`
	// Document is the merge patch; its strings are templates, null removes a field.
	Document map[string]any `yaml:"document"`
}

// Delete is the delete gate.
type Delete struct {
	When When `yaml:"when"`
	// PropagationPolicy is Background (default), Foreground or Orphan.
	PropagationPolicy string `yaml:"propagationPolicy"`
}

// Post is the last phase.
type Post struct {
	// Payloads are built first.
	Payloads []Payload `yaml:"payloads"`
	// PostActions run in order and stop at the first that fails.
	PostActions []PostAction `yaml:"post_actions"`
}

// Payload is JSON for the body of an action. Exactly one of build and build_ref is set.
type Payload struct {
	// Name is how templates of actions call the payload, as JSON text.
	Name string `yaml:"name"`
	// When skips the payload where it is false, and the actions that use it.
	When *When `yaml:"when"`
	// Build is an object whose leaves are template strings, literals,
	// {field: PATH, default: X} or {expression: CEL, default: X}.
	Build any `yaml:"build"`
	// BuildRef is the path of a file with such an object, beside the task file.
	BuildRef string `yaml:"build_ref"`
}

// PostAction is a call or a log line.
type PostAction struct {
	// Name is for logs and traces.
	Name string `yaml:"name"`
	// When skips the action where it is false.
	When    *When    `yaml:"when"`
	APICall *APICall `yaml:"api_call"`
	Log     *Log     `yaml:"log"`
}
