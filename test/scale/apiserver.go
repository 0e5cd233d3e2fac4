// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
)

// apiServer is a model of an API server with custom resources: it stores objects, checks resource versions and
// preconditions, keeps the status apart from the rest, waits for finalizers, and serves lists and watches. It does not
// validate objects and has no defaults. It is the transport of a client, so that no call leaves the process.
type apiServer struct {
	// delay waits as long as a call takes.
	delay func(isWrite bool)
	// own measures the processor time of the model.
	own *processorTime

	// kinds has the API version and the kind of each resource as JSON.
	kinds map[string]string

	mu      sync.Mutex
	version int64
	tables  map[string]*table
	writes  map[string]int
}

// table has the objects of one resource.
type table struct {
	objects  map[types.NamespacedName]*object
	watchers map[*watcher]bool
}

// object is a stored object. It is never changed, only replaced.
type object struct {
	fields map[string]any
	text   []byte
	labels labels.Set
}

func newAPIServer(scheme *runtime.Scheme, own *processorTime, delay func(isWrite bool)) *apiServer {
	out := &apiServer{
		delay: delay, own: own, kinds: map[string]string{}, tables: map[string]*table{}, writes: map[string]int{},
	}

	for kind := range scheme.AllKnownTypes() {
		plural, _ := meta.UnsafeGuessKindToResource(kind)
		out.kinds[plural.Resource] = fmt.Sprintf(`"apiVersion":%q,"kind":%q`, kind.GroupVersion(), kind.Kind)
	}

	return out
}

// call is a parsed request.
type call struct {
	table                       string
	key                         types.NamespacedName
	isStatus                    bool
	selector                    labels.Selector
	watches, sendsInitialEvents bool
}

// parseCall parses the path /api/v1/... or /apis/GROUP/VERSION/..., and the query.
func parseCall(request *http.Request) (call, error) {
	parts := strings.Split(strings.Trim(request.URL.Path, "/"), "/")

	prefix := 2
	if parts[0] == "apis" {
		prefix = 3
	}

	out := call{}
	rest := parts[min(prefix, len(parts)):]

	if len(rest) > 2 && rest[0] == "namespaces" {
		out.key.Namespace, rest = rest[1], rest[2:]
	}

	if len(rest) == 0 || len(rest) > 3 {
		return out, fmt.Errorf("parse path %s: it names no resource", request.URL.Path)
	}

	out.table = rest[0]
	if len(rest) > 1 {
		out.key.Name = rest[1]
	}

	out.isStatus = len(rest) == 3 && rest[2] == "status"
	query := request.URL.Query()
	out.watches, out.sendsInitialEvents = query.Get("watch") == "true", query.Get("sendInitialEvents") == "true"

	var err error
	if out.selector, err = labels.Parse(query.Get("labelSelector")); err != nil {
		return out, fmt.Errorf("parse labelSelector: %w", err)
	}

	return out, nil
}

// RoundTrip makes one call.
func (s *apiServer) RoundTrip(request *http.Request) (*http.Response, error) {
	parsed, err := parseCall(request)
	if err != nil {
		return nil, err
	}

	var body []byte

	if request.Body != nil {
		if body, err = io.ReadAll(request.Body); err != nil {
			return nil, fmt.Errorf("read request: %w", err)
		}
	}

	isWrite := request.Method != http.MethodGet
	if !parsed.watches {
		s.delay(isWrite)
	}

	if err := request.Context().Err(); err != nil {
		return nil, err
	}

	defer s.own.start()()

	s.mu.Lock()
	defer s.mu.Unlock()

	if isWrite {
		kind := strings.ToLower(request.Method) + " " + parsed.table
		if parsed.isStatus {
			kind += " status"
		}

		s.writes[kind]++
	}

	return s.answer(request, parsed, body), nil
}

// answer makes the call. The caller holds the lock.
func (s *apiServer) answer(request *http.Request, parsed call, body []byte) *http.Response {
	objects := s.tables[parsed.table]
	if objects == nil {
		objects = &table{objects: map[types.NamespacedName]*object{}, watchers: map[*watcher]bool{}}
		s.tables[parsed.table] = objects
	}

	switch found := objects.objects[parsed.key]; {
	case parsed.watches:
		return respond(request, http.StatusOK, s.watch(request, objects, parsed))
	case request.Method == http.MethodGet && parsed.key.Name == "":
		return respond(request, http.StatusOK, io.NopCloser(bytes.NewReader(s.list(objects, parsed))))
	case request.Method == http.MethodPost:
		return s.create(request, objects, parsed, body)
	case found == nil:
		return fail(request, http.StatusNotFound, metav1.StatusReasonNotFound)
	case request.Method == http.MethodGet:
		return respond(request, http.StatusOK, io.NopCloser(bytes.NewReader(found.text)))
	case request.Method == http.MethodDelete:
		return s.delete(request, objects, parsed, found, body)
	default:
		return s.update(request, objects, parsed, found, body)
	}
}

// list returns the objects of a namespace, or of all namespaces, in one page.
func (s *apiServer) list(objects *table, parsed call) []byte {
	var out bytes.Buffer

	fmt.Fprintf(&out, `{"metadata":{"resourceVersion":"%d"},"items":[`, s.version)

	for i, found := range objects.find(parsed) {
		if i > 0 {
			out.WriteByte(',')
		}

		out.Write(found.text)
	}

	out.WriteString("]}")

	return out.Bytes()
}

// find returns the objects that a list or a watch selects, in the order of their names.
func (t *table) find(parsed call) []*object {
	keys := slices.SortedFunc(maps.Keys(t.objects), func(a, b types.NamespacedName) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})

	var out []*object

	for _, key := range keys {
		if found := t.objects[key]; parsed.selects(key, found) {
			out = append(out, found)
		}
	}

	return out
}

func (c call) selects(key types.NamespacedName, found *object) bool {
	return (c.key.Namespace == "" || c.key.Namespace == key.Namespace) && c.selector.Matches(found.labels)
}

// averageSize returns the average size in bytes of the objects of a resource.
func (s *apiServer) averageSize(resource string) int {
	s.mu.Lock()
	defer s.mu.Unlock()

	size, found := 0, s.tables[resource]
	if found == nil || len(found.objects) == 0 {
		return 0
	}

	for _, each := range found.objects {
		size += len(each.text)
	}

	return size / len(found.objects)
}

// create stores a new object without its status.
func (s *apiServer) create(request *http.Request, objects *table, parsed call, body []byte) *http.Response {
	fields := map[string]any{}
	if err := json.Unmarshal(body, &fields); err != nil {
		return fail(request, http.StatusBadRequest, metav1.StatusReasonBadRequest)
	}

	metadata := metadataOf(fields)

	parsed.key.Name, _ = metadata["name"].(string)
	if prefix, _ := metadata["generateName"].(string); parsed.key.Name == "" {
		parsed.key.Name = prefix + strconv.FormatInt(s.version, 36)
	}

	if objects.objects[parsed.key] != nil {
		return fail(request, http.StatusConflict, metav1.StatusReasonAlreadyExists)
	}

	metadata["name"], metadata["generation"] = parsed.key.Name, 1
	// A runner's name has the first characters of the UID.
	metadata["uid"] = fmt.Sprintf("%08x-0000-4000-8000-000000000000", s.version)
	metadata["creationTimestamp"] = time.Now().UTC().Format(time.RFC3339)

	if parsed.key.Namespace != "" {
		metadata["namespace"] = parsed.key.Namespace
	}

	delete(fields, "status")

	return respond(request, http.StatusCreated, s.store(objects, parsed.key, fields, "ADDED"))
}

// update replaces or patches an object, or its status.
func (s *apiServer) update(
	request *http.Request, objects *table, parsed call, found *object, body []byte,
) *http.Response {
	change := map[string]any{}
	if err := json.Unmarshal(body, &change); err != nil {
		return fail(request, http.StatusBadRequest, metav1.StatusReasonBadRequest)
	}

	current := metadataOf(found.fields)["resourceVersion"]
	if version, _ := metadataOf(change)["resourceVersion"].(string); version != "" && version != current {
		return fail(request, http.StatusConflict, metav1.StatusReasonConflict)
	}

	next := change
	if request.Method == http.MethodPatch {
		next = mergePatch(found.fields, change)
	}

	// The status and the rest are written apart.
	for field := range next {
		if (field == "status") != parsed.isStatus && field != "metadata" {
			delete(next, field)
		}
	}

	for field, value := range found.fields {
		if (field == "status") != parsed.isStatus && field != "metadata" {
			next[field] = value
		}
	}

	if parsed.isStatus {
		next["metadata"] = maps.Clone(metadataOf(found.fields))
	}

	return s.replace(request, objects, parsed.key, found, next)
}

// replace stores the next state of an object, or deletes it if its last finalizer is gone.
func (s *apiServer) replace(
	request *http.Request, objects *table, key types.NamespacedName, found *object, next map[string]any,
) *http.Response {
	metadata, previous := metadataOf(next), metadataOf(found.fields)
	for _, field := range []string{"uid", "creationTimestamp", "deletionTimestamp", "generation", "namespace", "name"} {
		if value, ok := previous[field]; ok {
			metadata[field] = value
		}
	}

	if !reflect.DeepEqual(next["spec"], found.fields["spec"]) {
		metadata["generation"] = toInt(previous["generation"]) + 1
	}

	kind := "MODIFIED"
	if finalizers, _ := metadata["finalizers"].([]any); metadata["deletionTimestamp"] != nil && len(finalizers) == 0 {
		kind = "DELETED"
	}

	return respond(request, http.StatusOK, s.store(objects, key, next, kind))
}

// delete marks an object, or deletes it if it has no finalizer.
func (s *apiServer) delete(
	request *http.Request, objects *table, parsed call, found *object, body []byte,
) *http.Response {
	var options metav1.DeleteOptions
	if len(body) > 0 && json.Unmarshal(body, &options) != nil {
		return fail(request, http.StatusBadRequest, metav1.StatusReasonBadRequest)
	}

	metadata := metadataOf(found.fields)

	if wanted := options.Preconditions; wanted != nil {
		if wanted.UID != nil && string(*wanted.UID) != metadata["uid"] ||
			wanted.ResourceVersion != nil && *wanted.ResourceVersion != metadata["resourceVersion"] {
			return fail(request, http.StatusConflict, metav1.StatusReasonConflict)
		}
	}

	if metadata["deletionTimestamp"] != nil {
		return respond(request, http.StatusOK, io.NopCloser(bytes.NewReader(found.text)))
	}

	next := maps.Clone(found.fields)
	changed := maps.Clone(metadata)
	next["metadata"] = changed

	kind := "DELETED"
	if finalizers, _ := metadata["finalizers"].([]any); len(finalizers) > 0 {
		kind = "MODIFIED"
		changed["deletionTimestamp"] = time.Now().UTC().Format(time.RFC3339)
		changed["generation"] = toInt(metadata["generation"]) + 1
	}

	return respond(request, http.StatusOK, s.store(objects, parsed.key, next, kind))
}

// store stores the state of an object, sends it to the watchers, and returns it.
func (s *apiServer) store(objects *table, key types.NamespacedName, fields map[string]any, kind string) io.ReadCloser {
	s.version++
	metadataOf(fields)["resourceVersion"] = strconv.FormatInt(s.version, 10)

	text, err := json.Marshal(fields)
	if err != nil {
		panic(err) // it was decoded from JSON
	}

	stored := &object{fields: fields, text: text, labels: readLabels(fields)}
	objects.objects[key] = stored

	if kind == "DELETED" {
		delete(objects.objects, key)
	}

	for each := range objects.watchers {
		if each.selected.selects(key, stored) {
			each.send(kind, text)
		}
	}

	return io.NopCloser(bytes.NewReader(text))
}

func readLabels(fields map[string]any) labels.Set {
	out := labels.Set{}

	given, _ := metadataOf(fields)["labels"].(map[string]any)
	for name, value := range given {
		out[name], _ = value.(string)
	}

	return out
}

// metaOf returns the metadata of an object, which it adds if they are missing.
func metadataOf(fields map[string]any) map[string]any {
	out, ok := fields["metadata"].(map[string]any)
	if !ok {
		out = map[string]any{}
		fields["metadata"] = out
	}

	return out
}

// mergePatch applies a JSON merge patch (RFC 7386) to a copy of an object.
func mergePatch(target, patch map[string]any) map[string]any {
	out := maps.Clone(target)
	if out == nil {
		out = map[string]any{}
	}

	for name, value := range patch {
		switch value := value.(type) {
		case nil:
			delete(out, name)
		case map[string]any:
			previous, _ := out[name].(map[string]any)
			out[name] = mergePatch(previous, value)
		default:
			out[name] = value
		}
	}

	return out
}

func toInt(value any) int64 {
	switch value := value.(type) {
	case float64:
		return int64(value)
	case int64:
		return value
	case int:
		return int64(value)
	default:
		return 0
	}
}

func respond(request *http.Request, code int, body io.ReadCloser) *http.Response {
	return &http.Response{
		StatusCode: code, Status: http.StatusText(code), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{"Content-Type": {"application/json"}}, Body: body, ContentLength: -1, Request: request,
	}
}

func fail(request *http.Request, code int32, reason metav1.StatusReason) *http.Response {
	text, err := json.Marshal(metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
		Status:   metav1.StatusFailure, Code: code, Reason: reason,
		Message: request.Method + " " + request.URL.Path + ": " + string(reason),
	})
	if err != nil {
		panic(err) // a status is always valid
	}

	return respond(request, int(code), io.NopCloser(bytes.NewReader(text)))
}
