// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package secrets_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/kit/retry"
	"github.com/hyperfleet/hyperfleet/sim/github/githubtest"
	"github.com/hyperfleet/hyperfleet/sim/machost"
	"github.com/hyperfleet/hyperfleet/sim/machost/machosttest"
	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/test/capture"
)

// Values of Secrets that no server, object, event or log may contain.
const (
	closedCanary, elsewhereCanary, privateCanary = "canary-closed-7f3a91", "canary-elsewhere-c20b54", "canary-private-e81d06"
	hostCanary                                   = "canary-host-55aa10"
	// private is a Secret in the neighbour's namespace, the operator's namespace and kube-system. No object
	// refers to it, and it allows no namespace.
	private = "private"
)

// listCanaries returns the values of Secrets by their descriptions.
func (h *tenantFixture) listCanaries() map[string]string {
	return map[string]string{
		"the neighbour's webhook secret": closedCanary, "a token for another server": elsewhereCanary, "a private secret": privateCanary,
		"the secret of the neighbour's host": hostCanary, "the shared token": githubtest.PAT, "the hypervisor's token": pve.DefaultSecret,
		"the operator's key": string(h.ReportKey),
	}
}

// recordingServer is a server of the tenant that records the start of each connection and never responds.
type recordingServer struct {
	url      string
	received capture.Buffer
}

func startListener(t *testing.T) *recordingServer {
	t.Helper()

	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { _ = listener.Close() })

	e := &recordingServer{url: "http://" + listener.Addr().String()}

	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}

			go e.receive(conn)
		}
	}()

	return e
}

func (e *recordingServer) receive(conn net.Conn) {
	const timeout, most = time.Second, 1 << 16

	fmt.Fprintln(&e.received, "a connection:")

	_ = conn.SetReadDeadline(time.Now().Add(timeout))
	_, _ = io.Copy(&e.received, io.LimitReader(conn, most))
	_ = conn.Close()
}

func (e *recordingServer) text() string    { return e.received.String() }
func (e *recordingServer) address() string { return strings.TrimPrefix(e.url, "http://") }

// tenantServers belong to the tenant. The operator may send them the tenant's own Secrets, and no other
// Secret.
type tenantServers struct {
	// web and plain record and answer every request, with and without TLS.
	web, plain *httptest.Server
	requests   capture.Buffer
	// The key allows logins to host. neighbourHost does not accept the key.
	host, neighbourHost *machost.Host
	key                 string
}

func newTenantServers(t *testing.T) *tenantServers {
	t.Helper()

	o := &tenantServers{}
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		const most = 1 << 20

		body, _ := io.ReadAll(io.LimitReader(r.Body, most))
		fmt.Fprintf(&o.requests, "%s %s %v %s\n", r.Method, r.URL, r.Header, body)
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, "{}")
	})
	o.web, o.plain = httptest.NewTLSServer(handler), httptest.NewServer(handler)
	t.Cleanup(o.web.Close)
	t.Cleanup(o.plain.Close)

	private, line := machosttest.NewKey(t)
	_, another := machosttest.NewKey(t)
	o.key = private.Reveal()
	o.host = machosttest.Start(t, machost.Options{System: machost.Linux, Light: true, User: hostUser, AuthorizedKeys: []string{line}})
	o.neighbourHost = machosttest.Start(t, machost.Options{System: machost.Linux, Light: true, User: hostUser, AuthorizedKeys: []string{another}})

	return o
}

// listReceived returns everything that the servers have received, by server.
func (o *tenantServers) listReceived() map[string]string {
	out := map[string]string{"the tenant's server": o.requests.String()}

	for _, run := range o.host.Runs() {
		out["the tenant's host, "+run.Label] = o.host.Payload(run.Label)
	}

	return out
}

// callRecorder records the operator's API calls: reads of Secrets, and all writes.
type callRecorder struct {
	mu sync.Mutex
	// metadataReads are reads of only the metadata of Secrets.
	metadataReads, reads, writes map[string]bool
}

// wrapTransport records the requests that a transport sends.
func (l *callRecorder) wrapTransport(next http.RoundTripper) http.RoundTripper {
	return retry.RoundTripperFunc(func(r *http.Request) (*http.Response, error) {
		l.record(r)

		return next.RoundTrip(r)
	})
}

func (l *callRecorder) record(r *http.Request) {
	at := parseTarget(r)

	l.mu.Lock()
	defer l.mu.Unlock()

	if l.reads == nil {
		l.metadataReads, l.reads, l.writes = map[string]bool{}, map[string]bool{}, map[string]bool{}
	}

	switch {
	case r.Method != http.MethodGet:
		l.writes[at.String()] = true
	case at.resource != "secrets":
	case strings.Contains(r.Header.Get("Accept"), "as=PartialObjectMetadata"):
		l.metadataReads[at.String()] = true
	default:
		l.reads[at.String()] = true
	}
}

func (l *callRecorder) reset() {
	l.mu.Lock()
	defer l.mu.Unlock()

	clear(l.reads)
	clear(l.writes)
}

func (l *callRecorder) list(which func() map[string]bool) []string {
	l.mu.Lock()
	defer l.mu.Unlock()

	var out []string
	for at := range which() {
		out = append(out, at)
	}

	slices.Sort(out)

	return out
}

// requestTarget is the object that a request is about.
type requestTarget struct{ namespace, resource, name, subresource string }

// String returns namespace/resource/name/subresource, with "-" for cluster-scoped objects.
func (w requestTarget) String() string {
	namespace := w.namespace
	if namespace == "" {
		namespace = "-"
	}

	return strings.TrimRight(strings.Join([]string{namespace, w.resource, w.name, w.subresource}, "/"), "/")
}

func parseTarget(r *http.Request) requestTarget {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")

	switch { // api/V/..., apis/G/V/...
	case len(parts) > 2 && parts[0] == "api":
		parts = parts[2:]
	case len(parts) > 3 && parts[0] == "apis":
		parts = parts[3:]
	default:
		return requestTarget{}
	}

	var out requestTarget
	if parts[0] == "namespaces" && len(parts) > 2 {
		out.namespace, parts = parts[1], parts[2:]
	}

	for i, into := range []*string{&out.resource, &out.name, &out.subresource} {
		if i < len(parts) {
			*into = parts[i]
		}
	}

	return out
}

// checkReads returns the reads of Secrets outside the tenant's namespace that the Secrets' owners have not
// allowed.
func (h *tenantFixture) checkReads() []string {
	may := map[string]bool{}
	for _, secret := range []string{"closed", "shared", "elsewhere"} {
		may[requestTarget{h.neighbour, "secrets", secret, ""}.String()] = true
	}

	for _, secret := range []string{"proxmox", "closed"} { // the credentials of the hypervisors
		may[requestTarget{h.Namespace, "secrets", secret, ""}.String()] = true
	}

	var out []string

	for _, at := range h.calls.list(func() map[string]bool { return h.calls.reads }) {
		if !may[at] && !strings.HasPrefix(at, h.team+"/secrets/") {
			out = append(out, "the operator read "+at)
		}
	}

	return out
}

// checkWrites returns the writes outside the tenant's namespace. The operator may write only the statuses of
// the neighbour's objects and of the hypervisors.
func (h *tenantFixture) checkWrites() []string {
	var out []string

	for _, at := range h.calls.list(func() map[string]bool { return h.calls.writes }) {
		parts := append(strings.Split(at, "/"), "", "")
		namespace, resource, name, sub := parts[0], parts[1], parts[2], parts[3]

		switch {
		case namespace == h.team, resource == "events", resource == "selfsubjectaccessreviews":
		case namespace == h.neighbour && sub == "status":
		case at == h.neighbour+"/secrets": // the bootstrap Secret of its machine; checkChanges checks Secrets
		case resource == "secrets" && namespace == h.neighbour && slices.Contains([]string{"shared", "elsewhere"}, name):
			// The Secrets allow the tenant's namespace, so they are kept with a finalizer while the tenant needs them.
		case namespace == h.Namespace && resource == "hypervisormachinetemplates": // templates of the sites
		case namespace == "-" && resource == "hypervisorclusters":
		default:
			out = append(out, "the operator wrote "+at)
		}
	}

	return out
}

// checkChanges returns the changes of the neighbour's objects, runners and hosts.
func (h *tenantFixture) checkChanges() []string {
	var out []string

	for _, was := range h.neighbourObjects {
		now, ok := was.DeepCopyObject().(client.Object)
		if !ok {
			panic("no object")
		}

		if err := h.Client.Get(h.t.Context(), client.ObjectKeyFromObject(was), now); err != nil {
			out = append(out, err.Error())

			continue
		}

		if now.GetUID() != was.GetUID() || now.GetGeneration() != was.GetGeneration() || now.GetDeletionTimestamp() != nil ||
			!cmp.Equal(now.GetLabels(), was.GetLabels()) || !cmp.Equal(getContent(now), getContent(was)) {
			out = append(out, was.GetName()+" of the neighbour was changed")
		}
	}

	for _, secret := range h.listSecrets(h.neighbour) {
		if !slices.Contains(h.neighbourSecrets, secret) {
			out = append(out, "the neighbour has a Secret "+secret)
		}
	}

	runners := 0

	for _, runner := range h.GitHub.State().Runners {
		if strings.HasPrefix(runner.Name, "neighbour") {
			runners++
		}
	}

	if runners != 1 {
		out = append(out, fmt.Sprintf("the neighbour has %d runners", runners))
	}

	if logins := h.own.neighbourHost.Logins(); logins > 0 {
		out = append(out, fmt.Sprintf("%d logins at the neighbour's host", logins))
	}

	return out
}

// listSecrets returns the names of a namespace's Secrets.
func (h *tenantFixture) listSecrets(namespace string) []string {
	var list corev1.SecretList
	if err := h.Client.List(h.t.Context(), &list, client.InNamespace(namespace)); err != nil {
		return []string{err.Error()}
	}

	var out []string
	for i := range list.Items {
		out = append(out, list.Items[i].Name)
	}

	return out
}

// getContent returns the part of an object whose changes the generation does not show.
func getContent(object client.Object) any {
	switch object := object.(type) {
	case *corev1.Secret:
		return object.Data
	case *corev1.ConfigMap:
		return object.Data
	case *unstructured.Unstructured:
		return object.Object["spec"]
	default:
		return nil
	}
}

// requireActivity checks that the run was meaningful: in every area, the operator did what the tenant may ask
// for.
func (h *tenantFixture) requireActivity() {
	h.t.Helper()

	if logins := h.own.host.Logins(); logins == 0 {
		h.t.Error("the operator did not log in to the tenant's host")
	}

	if requests := h.own.requests.String(); !strings.Contains(requests, ownToken) {
		h.t.Errorf("the tenant's server did not receive the tenant's token: %s", requests)
	}

	looks := h.calls.list(func() map[string]bool { return h.calls.metadataReads })
	if at := (requestTarget{h.neighbour, "secrets", private, ""}); !slices.Contains(looks, at.String()) {
		h.t.Errorf("the operator did not read the metadata of %s: %v", at, looks)
	}

	handed := &corev1.Secret{}
	if err := h.Client.Get(h.t.Context(), client.ObjectKey{Namespace: h.team, Name: h.kubeconfigSecret}, handed); err != nil && !apierrors.IsNotFound(err) || h.kubeconfigSecret == "" {
		h.t.Errorf("no bridge of the tenant has a kubeconfig: %v", err)
	}
}
