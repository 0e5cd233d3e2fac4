// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kill

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/sim/pve"
)

// Moment says when the operator dies, seen from a call.
type Moment string

// The moments.
const (
	// Before is when the operator wanted to make the call and nobody ever got it.
	Before Moment = "before"
	// After is when the call has done what it does and the operator has not heard.
	After Moment = "after"
	// Late is when the call takes effect only after the next operator has begun.
	Late Moment = "late"
)

// Call is one call in a machine's life: the nth of its kind.
type Call struct {
	// Side is pve, forge, kube, or webhook, which is the other way round.
	Side   string
	Method string
	// Pattern is the path with the names of things replaced.
	Pattern string
	Nth     int
}

func (c Call) String() string {
	if c.Nth == 1 {
		return fmt.Sprintf("%s %s %s", c.Side, c.Method, c.Pattern)
	}

	return fmt.Sprintf("%s %s %s #%d", c.Side, c.Method, c.Pattern, c.Nth)
}

// changes tells whether the call can change anything.
func (c Call) changes() bool { return c.Method != http.MethodGet }

// Boundary is where the operator is killed.
type Boundary struct {
	Call   Call
	Moment Moment
}

func (b Boundary) String() string { return string(b.Moment) + " " + b.Call.String() }

// Name of the boundary's test.
func (b Boundary) Name() string {
	return strings.NewReplacer("/", ".", " ", "_").Replace(b.String())
}

// Boundaries of the calls of a life.
func Boundaries(calls []Call) []Boundary {
	var out []Boundary

	for _, call := range calls {
		if call.Side == sideWebhook {
			// What comes while no operator is there is the forge's to send again.
			out = append(out, Boundary{call, After})

			continue
		}

		out = append(out, Boundary{call, Before})
		if !call.changes() {
			continue
		}

		out = append(out, Boundary{call, After})
		if call.Side == sidePVE {
			out = append(out, Boundary{call, Late})
		}
	}

	return out
}

// Telling are boundaries that tell most of what the operator does with its claims, by the names of
// their lives. What a provider does at each of its own calls package conformance tries.
func Telling() map[string][]Boundary {
	const vm = "/nodes/NODE/qemu/VM"

	call := func(method, pattern string) Call { return Call{sidePVE, method, pattern, 1} }
	clone := call(http.MethodPost, "/nodes/NODE/qemu/TEMPLATE/clone")

	return map[string][]Boundary{
		JobRuns: {
			{Call{sideWebhook, http.MethodPost, "/webhooks/github", 1}, After},
			{clone, Before}, // the VM's id is on record
			{clone, After},
			{clone, Late},
			{Call{sideForge, http.MethodPost, "/actions/runners/generate-jitconfig", 1}, After},
			{call(http.MethodPost, vm+"/status/start"), After},
			{call(http.MethodDelete, vm), Before},
		},
		Cancelled: {
			{Call{sideForge, http.MethodDelete, "/actions/runners/ID", 1}, After},
		},
		Addressed: {
			{Call{sideKube, http.MethodPatch, patternAddress, 1}, After},
			{Call{sideKube, http.MethodPatch, patternFinalizer, 1}, Before},
		},
	}
}

const (
	sidePVE   = "pve"
	sideForge = "forge"
	// sideKube is the API server, and what is written there of addresses.
	sideKube = "kube"
	// sideWebhook is the first webhook, which brings the job.
	sideWebhook = "webhook"
)

// What is written to the API server, by what it says. The path is that of a claim or its
// status.
const (
	// patternAddress puts addresses on record.
	patternAddress = "/machineclaims/CLAIM/status:addresses"
	// patternCleaned puts on record that the machine is gone.
	patternCleaned = "/machineclaims/CLAIM/status:VMCleanedUp"
	// patternFinalizer lets the claim go.
	patternFinalizer = "/machineclaims/CLAIM:finalizers"
)

// names are what differs from machine to machine in a path.
type names []struct {
	re   *regexp.Regexp
	with string
}

func newNames() names {
	return names{
		{regexp.MustCompile(`^/nodes/[^/]+/`), "/nodes/NODE/"},
		{regexp.MustCompile(`/qemu/1\d{5}`), "/qemu/VM"},
		{regexp.MustCompile(`/qemu/\d{1,5}/`), "/qemu/TEMPLATE/"},
		{regexp.MustCompile(`/content/.*\.iso$`), "/content/ISO"},
		{regexp.MustCompile(`^/repos/[^/]+/[^/]+/`), "/"},
		{regexp.MustCompile(`/runners/\d+$`), "/runners/ID"},
	}
}

func (n names) generic(path string) string {
	for _, name := range n {
		path = name.re.ReplaceAllString(path, name.with)
	}

	return path
}

// ofPVE gives the call of one machine's life that a call of the hypervisor is, if it is
// one: what changes anything, and what looks at the machine. Listings and polls are
// shared by all.
func (n names) ofPVE(c pve.Call) (Call, bool) {
	if c.Class == pve.ClassListing || c.Class == pve.ClassTask {
		return Call{}, false
	}

	call := Call{Side: sidePVE, Method: c.Method, Pattern: n.generic(c.Path)}

	return call, call.changes() || strings.Contains(call.Pattern, "/qemu/VM")
}

// ofForge gives the same for a request to the CI platform: what makes or removes a
// runner. What the runners themselves say goes to other paths.
func (n names) ofForge(r *http.Request) (Call, bool) {
	call := Call{Side: sideForge, Method: r.Method, Pattern: n.generic(r.URL.Path)}

	return call, call.changes() && (call.Pattern == "/actions/runners/generate-jitconfig" || call.Pattern == "/actions/runners/ID")
}

// ofKube gives the same for a request to the API server: the writes that an address hangs on.
func ofKube(r *http.Request) (Call, bool) {
	call := Call{Side: sideKube, Method: r.Method}

	if r.Method != http.MethodPatch || !strings.Contains(r.URL.Path, "/machineclaims/") {
		return call, false
	}

	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler) // the operator died with the request half sent
	}

	r.Body = io.NopCloser(bytes.NewReader(body))

	var object v1alpha1.MachineClaim
	if err := json.Unmarshal(body, &object); err != nil {
		return call, false
	}

	info := object.Status.NetworkInfo

	switch {
	case !strings.HasSuffix(r.URL.Path, "/status"):
		call.Pattern = patternFinalizer

		return call, bytes.Contains(body, []byte(`"finalizers":null`))
	case info != nil && len(info.Addresses) > 0:
		call.Pattern = patternAddress

		return call, true
	default:
		call.Pattern = patternCleaned

		return call, meta.IsStatusConditionTrue(object.Status.Conditions, v1alpha1.ConditionVMCleanedUp)
	}
}
