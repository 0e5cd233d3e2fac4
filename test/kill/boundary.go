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

// Timing says when the operator is killed, relative to a call.
type Timing string

// Values of Timing.
const (
	// Before kills the operator before the call takes effect. The call never takes effect.
	Before Timing = "before"
	// After kills the operator after the call has taken effect, and before it receives the response.
	After Timing = "after"
	// Late kills the operator before the call takes effect. The call takes effect after the next operator
	// has started.
	Late Timing = "late"
)

// Call identifies one call in a lifecycle.
type Call struct {
	// Server is the called server: pve, forge or kube, or webhook for a call to the operator.
	Server string
	Method string
	// Pattern is the path with placeholders for the names of objects.
	Pattern string
	// Nth is the number of the call among those with the same server, method and pattern, from 1.
	Nth int
}

func (c Call) String() string {
	if c.Nth == 1 {
		return fmt.Sprintf("%s %s %s", c.Server, c.Method, c.Pattern)
	}

	return fmt.Sprintf("%s %s %s #%d", c.Server, c.Method, c.Pattern, c.Nth)
}

// isWrite returns true if the call can change anything.
func (c Call) isWrite() bool { return c.Method != http.MethodGet }

// Boundary is a point at which the operator is killed: before or after one call of a lifecycle.
type Boundary struct {
	Call   Call
	Timing Timing
}

func (b Boundary) String() string { return string(b.Timing) + " " + b.Call.String() }

// Name returns the name of the boundary's subtest.
func (b Boundary) Name() string {
	return strings.NewReplacer("/", ".", " ", "_").Replace(b.String())
}

// Boundaries returns all boundaries of the calls of a lifecycle.
func Boundaries(calls []Call) []Boundary {
	var out []Boundary

	for _, call := range calls {
		if call.Server == serverWebhook {
			// The CI platform must redeliver a webhook that it sends while no operator runs.
			out = append(out, Boundary{call, After})

			continue
		}

		out = append(out, Boundary{call, Before})
		if !call.isWrite() {
			continue
		}

		out = append(out, Boundary{call, After})
		if call.Server == serverPVE {
			out = append(out, Boundary{call, Late})
		}
	}

	return out
}

// KeyBoundaries returns a selection of boundaries by the names of their lifecycles. They cover most of what
// the operator does with its claims. Package conformance tests providers at each of their own calls.
func KeyBoundaries() map[string][]Boundary {
	const vm = "/nodes/NODE/qemu/VM"

	call := func(method, pattern string) Call { return Call{serverPVE, method, pattern, 1} }
	clone := call(http.MethodPost, "/nodes/NODE/qemu/TEMPLATE/clone")

	return map[string][]Boundary{
		JobRuns: {
			{Call{serverWebhook, http.MethodPost, "/webhooks/github", 1}, After},
			{clone, Before}, // the VM's id is recorded in the claim's status
			{clone, After},
			{clone, Late},
			{Call{serverForge, http.MethodPost, "/actions/runners/generate-jitconfig", 1}, After},
			{call(http.MethodPost, vm+"/status/start"), After},
			{call(http.MethodDelete, vm), Before},
		},
		Cancelled: {
			{Call{serverForge, http.MethodDelete, "/actions/runners/ID", 1}, After},
		},
		Addressed: {
			{Call{serverKube, http.MethodPatch, patternAddress, 1}, After},
			{Call{serverKube, http.MethodPatch, patternFinalizer, 1}, Before},
		},
		Bound: {
			{clone, After},
			{call(http.MethodPost, vm+"/status/start"), After},
			{Call{serverKube, http.MethodPut, patternRunning, 1}, Before},
			{Call{serverKube, http.MethodPut, patternCompleted, 1}, After},
		},
	}
}

const (
	serverPVE   = "pve"
	serverForge = "forge"
	// serverKube is the API server. Only writes about addresses and of the states of jobs count.
	serverKube = "kube"
	// serverWebhook is the first webhook, which contains the job.
	serverWebhook = "webhook"
)

// Patterns of writes to the API server. Each has the path of a claim, of its status or of a job, and after the colon
// the field or the state that is written.
const (
	// patternAddress records the addresses in the status.
	patternAddress = "/machineclaims/CLAIM/status:addresses"
	// patternCleaned records in the status that the machine is deleted.
	patternCleaned = "/machineclaims/CLAIM/status:VMCleanedUp"
	// patternFinalizer removes the finalizers of the claim.
	patternFinalizer = "/machineclaims/CLAIM:finalizers"
	// patternRunning and patternCompleted write the state of a job.
	patternRunning, patternCompleted = "/runnerjobs/JOB:Running", "/runnerjobs/JOB:Completed"
)

// placeholders replace the parts of a path that differ between machines.
type placeholders []struct {
	re          *regexp.Regexp
	replacement string
}

func newNames() placeholders {
	return placeholders{
		{regexp.MustCompile(`^/nodes/[^/]+/`), "/nodes/NODE/"},
		{regexp.MustCompile(`/qemu/1\d{5}`), "/qemu/VM"},
		{regexp.MustCompile(`/qemu/\d{1,5}/`), "/qemu/TEMPLATE/"},
		{regexp.MustCompile(`/content/.*\.iso$`), "/content/ISO"},
		{regexp.MustCompile(`^/repos/[^/]+/[^/]+/`), "/"},
		{regexp.MustCompile(`/runners/\d+$`), "/runners/ID"},
	}
}

func (n placeholders) generalize(path string) string {
	for _, name := range n {
		path = name.re.ReplaceAllString(path, name.replacement)
	}

	return path
}

// convertPVE converts a call to the hypervisor to a call of a machine's lifecycle. isOfMachine is true for writes
// and for reads of the machine. It is false for lists and polls of tasks, which all machines share.
func (n placeholders) convertPVE(c pve.Call) (call Call, isOfMachine bool) {
	if c.Class == pve.ClassListing || c.Class == pve.ClassTask {
		return Call{}, false
	}

	call = Call{Server: serverPVE, Method: c.Method, Pattern: n.generalize(c.Path)}

	return call, call.isWrite() || strings.Contains(call.Pattern, "/qemu/VM")
}

// convertForge converts a request to the CI platform to a call of a machine's lifecycle. isOfMachine is true for
// requests that create or delete a runner. Requests of the runners themselves have other paths.
func (n placeholders) convertForge(r *http.Request) (call Call, isOfMachine bool) {
	call = Call{Server: serverForge, Method: r.Method, Pattern: n.generalize(r.URL.Path)}

	return call, call.isWrite() && (call.Pattern == "/actions/runners/generate-jitconfig" || call.Pattern == "/actions/runners/ID")
}

// convertKube converts a request to the API server to a call of a machine's lifecycle. isOfMachine is true for
// writes that allocate or release an address, and for those of the state of a job.
func convertKube(r *http.Request) (call Call, isOfMachine bool) {
	call = Call{Server: serverKube, Method: r.Method}
	isJob := r.Method == http.MethodPut && strings.Contains(r.URL.Path, "/runnerjobs/")

	if !isJob && (r.Method != http.MethodPatch || !strings.Contains(r.URL.Path, "/machineclaims/")) {
		return call, false
	}

	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler) // the operator was killed before it had sent the whole request
	}

	r.Body = io.NopCloser(bytes.NewReader(body))

	if isJob {
		var job v1alpha1.RunnerJob

		err := json.Unmarshal(body, &job)
		call.Pattern = "/runnerjobs/JOB:" + string(job.Spec.State)

		return call, err == nil
	}

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
