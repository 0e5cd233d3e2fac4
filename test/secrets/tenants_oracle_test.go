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

// Values of Secrets that no server, object, event or log may have.
const (
	closedCanary, elsewhereCanary, privateCanary = "canary-closed-7f3a91", "canary-elsewhere-c20b54", "canary-private-e81d06"
	hostCanary                                   = "canary-host-55aa10"
	// private is a Secret of the neighbour, of the operator's namespace and of kube-system, which
	// nobody uses and which allows nothing.
	private = "private"
)

// canaries are by what they are.
func (h *hostile) canaries() map[string]string {
	return map[string]string{
		"the neighbour's webhook secret": closedCanary, "a token for elsewhere": elsewhereCanary, "a private secret": privateCanary,
		"what is for the neighbour's host": hostCanary, "the shared token": githubtest.PAT, "the hypervisor's token": pve.DefaultSecret,
		"the operator's key": string(h.ReportKey),
	}
}

// ear is a server of a tenant's: it takes connections, hears what is said first, and says nothing.
type ear struct {
	url   string
	heart capture.Buffer
}

func listen(t *testing.T) *ear {
	t.Helper()

	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { _ = listener.Close() })

	e := &ear{url: "http://" + listener.Addr().String()}

	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}

			go e.hear(conn)
		}
	}()

	return e
}

func (e *ear) hear(conn net.Conn) {
	const patience, most = time.Second, 1 << 16

	fmt.Fprintln(&e.heart, "a call:")

	_ = conn.SetReadDeadline(time.Now().Add(patience))
	_, _ = io.Copy(&e.heart, io.LimitReader(conn, most))
	_ = conn.Close()
}

func (e *ear) heard() string   { return e.heart.String() }
func (e *ear) address() string { return strings.TrimPrefix(e.url, "http://") }

// ownServers are a tenant's: what it names there with a Secret of its own may be called, and hears
// what is in that Secret and nothing else.
type ownServers struct {
	// web answers every call, with TLS or without, and writes down all of it.
	web, plain *httptest.Server
	said       capture.Buffer
	// host is one that it may log in to, with key; theirs is the neighbour's.
	host, theirs *machost.Host
	key          string
}

func newOwnServers(t *testing.T) *ownServers {
	t.Helper()

	o := &ownServers{}
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		const most = 1 << 20

		body, _ := io.ReadAll(io.LimitReader(r.Body, most))
		fmt.Fprintf(&o.said, "%s %s %v %s\n", r.Method, r.URL, r.Header, body)
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
	o.theirs = machosttest.Start(t, machost.Options{System: machost.Linux, Light: true, User: hostUser, AuthorizedKeys: []string{another}})

	return o
}

// told is all that they heard, by server.
func (o *ownServers) told() map[string]string {
	out := map[string]string{"the tenant's server": o.said.String()}

	for _, run := range o.host.Runs() {
		out["the tenant's host, "+run.Label] = o.host.Payload(run.Label)
	}

	return out
}

// ledger is what the operator asks of the API server: the contents of Secrets, and all that it
// changes.
type ledger struct {
	mu sync.Mutex
	// looks are reads of what is around a Secret.
	looks, reads, writes map[string]bool
}

// watch notes what goes by.
func (l *ledger) watch(next http.RoundTripper) http.RoundTripper {
	return retry.RoundTripperFunc(func(r *http.Request) (*http.Response, error) {
		l.note(r)

		return next.RoundTrip(r)
	})
}

func (l *ledger) note(r *http.Request) {
	at := whereOf(r)

	l.mu.Lock()
	defer l.mu.Unlock()

	if l.reads == nil {
		l.looks, l.reads, l.writes = map[string]bool{}, map[string]bool{}, map[string]bool{}
	}

	switch {
	case r.Method != http.MethodGet:
		l.writes[at.String()] = true
	case at.resource != "secrets":
	case strings.Contains(r.Header.Get("Accept"), "as=PartialObjectMetadata"):
		l.looks[at.String()] = true
	default:
		l.reads[at.String()] = true
	}
}

func (l *ledger) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()

	clear(l.reads)
	clear(l.writes)
}

func (l *ledger) list(which func() map[string]bool) []string {
	l.mu.Lock()
	defer l.mu.Unlock()

	var out []string
	for at := range which() {
		out = append(out, at)
	}

	slices.Sort(out)

	return out
}

// where is what a request is about.
type where struct{ namespace, resource, name, sub string }

// String has an object's namespace, or "-", its resource and its name, and its subresource.
func (w where) String() string {
	namespace := w.namespace
	if namespace == "" {
		namespace = "-"
	}

	return strings.TrimRight(strings.Join([]string{namespace, w.resource, w.name, w.sub}, "/"), "/")
}

func whereOf(r *http.Request) where {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")

	switch { // api/V/..., apis/G/V/...
	case len(parts) > 2 && parts[0] == "api":
		parts = parts[2:]
	case len(parts) > 3 && parts[0] == "apis":
		parts = parts[3:]
	default:
		return where{}
	}

	var out where
	if parts[0] == "namespaces" && len(parts) > 2 {
		out.namespace, parts = parts[1], parts[2:]
	}

	for i, into := range []*string{&out.resource, &out.name, &out.sub} {
		if i < len(parts) {
			*into = parts[i]
		}
	}

	return out
}

// read says which Secrets of others were read that do not allow it: what the operator reads outside
// of the tenant's namespace is what the owner of a Secret there has told it to use, or lets the
// tenant use.
func (h *hostile) read() []string {
	may := map[string]bool{}
	for _, secret := range []string{"closed", "shared", "elsewhere"} {
		may[where{h.neighbour, "secrets", secret, ""}.String()] = true
	}

	for _, secret := range []string{"proxmox", "closed"} { // those of the hypervisors
		may[where{h.Namespace, "secrets", secret, ""}.String()] = true
	}

	var out []string

	for _, at := range h.asked.list(func() map[string]bool { return h.asked.reads }) {
		if !may[at] && !strings.HasPrefix(at, h.team+"/secrets/") {
			out = append(out, "the operator read "+at)
		}
	}

	return out
}

// wrote says what was written of others': nothing but how the neighbour's own objects and the
// hypervisors do may be.
func (h *hostile) wrote() []string {
	var out []string

	for _, at := range h.asked.list(func() map[string]bool { return h.asked.writes }) {
		parts := append(strings.Split(at, "/"), "", "")
		namespace, resource, sub := parts[0], parts[1], parts[3]

		switch {
		case namespace == h.team, resource == "events", resource == "selfsubjectaccessreviews":
		case namespace == h.neighbour && sub == "status":
		case at == h.neighbour+"/secrets": // of its machine, until that runs; changed looks at them
		case namespace == h.Namespace && resource == "hypervisormachinetemplates": // those of the sites
		case namespace == "-" && resource == "hypervisorclusters":
		default:
			out = append(out, "the operator wrote "+at)
		}
	}

	return out
}

// changed says what is another's and not as it was.
func (h *hostile) changed() []string {
	var out []string

	for _, was := range h.theirs {
		now, ok := was.DeepCopyObject().(client.Object)
		if !ok {
			panic("no object")
		}

		if err := h.Client.Get(h.t.Context(), client.ObjectKeyFromObject(was), now); err != nil {
			out = append(out, err.Error())

			continue
		}

		if now.GetUID() != was.GetUID() || now.GetGeneration() != was.GetGeneration() || now.GetDeletionTimestamp() != nil ||
			!cmp.Equal(now.GetLabels(), was.GetLabels()) || !cmp.Equal(dataOf(now), dataOf(was)) {
			out = append(out, was.GetName()+" of the neighbour was changed")
		}
	}

	for _, secret := range h.secretsOf(h.neighbour) {
		if !slices.Contains(h.secrets, secret) {
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

	if logins := h.own.theirs.Logins(); logins > 0 {
		out = append(out, fmt.Sprintf("%d logins at the neighbour's host", logins))
	}

	return out
}

// secretsOf are the names of a namespace's Secrets.
func (h *hostile) secretsOf(namespace string) []string {
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

// dataOf is what of an object has no generation.
func dataOf(object client.Object) any {
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

// wentFar makes sure that there was something to see: what a tenant may have it had, in every area.
func (h *hostile) wentFar() {
	h.t.Helper()

	if logins := h.own.host.Logins(); logins == 0 {
		h.t.Error("no host of the tenant's was logged in to")
	}

	if said := h.own.said.String(); !strings.Contains(said, ownToken) {
		h.t.Errorf("no server of the tenant's was told its own token: %s", said)
	}

	looks := h.asked.list(func() map[string]bool { return h.asked.looks })
	if at := (where{h.neighbour, "secrets", private, ""}); !slices.Contains(looks, at.String()) {
		h.t.Errorf("nobody wanted %s: %v", at, looks)
	}

	handed := &corev1.Secret{}
	if err := h.Client.Get(h.t.Context(), client.ObjectKey{Namespace: h.team, Name: h.handed}, handed); err != nil && !apierrors.IsNotFound(err) || h.handed == "" {
		h.t.Errorf("no bridge of the tenant's got as far as its kubeconfig: %v", err)
	}
}
