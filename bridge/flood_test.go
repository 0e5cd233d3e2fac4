// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package bridge_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/bridge/csr"
	"github.com/hyperfleet/hyperfleet/test/must"
	"github.com/hyperfleet/hyperfleet/test/scrape"
	"github.com/hyperfleet/hyperfleet/test/timing"
)

const (
	floodSize = 5000
	// maxFloodEvents is the number of events about refused requests that a bridge may have: 100, and one that says that
	// there are no further ones.
	maxFloodEvents = 101
)

// TestRequestFlood checks that 5,000 requests that a worker creates cause at most 101 events and no reads of DPUs, are
// counted once each, and do not prevent the approval of another worker's request. A large request is not kept in
// memory.
func TestRequestFlood(t *testing.T) {
	w := newWorkers(t, runApprover(t))

	// The API server ends a request after a minute, and may not have deleted all of them by then.
	t.Cleanup(func() {
		timing.WaitUntil(t, "the requests are deleted", func() bool {
			return env.Client.DeleteAllOf(context.Background(), &certificatesv1.CertificateSigningRequest{}) == nil
		})
	})

	w.createFlood(t)

	worker := newClientCase("dpu-in-flood")
	w.prepareCase(t, "dpu-in-flood", worker)
	w.waitForDecision(t, w.createRequest(t, "dpu-in-flood", worker), approved)

	refused := func() float64 {
		return scrape.SumOf(t, w.beside.registry, "hyperfleet_bridge_csr_decisions_total", `result="refused"`)
	}
	w.eventually(t, "all requests are counted", func() bool { return refused() >= floodSize })

	// Each of these DPUs enqueues the bridge once more.
	before := w.beside.reconciles.Load()
	w.eventually(t, "three more reconciles", func() bool {
		must.Do(t, w.sim.SetDPU(t.Context(), w.dpus, fmt.Sprintf("another-%d", w.beside.reconciles.Load()), "Rebooting"))

		return w.beside.reconciles.Load() >= before+3
	})

	if n := refused(); n != floodSize {
		t.Errorf("%.0f refusals are counted, want %d", n, floodSize)
	}

	if n := w.beside.dpuReads.Load(); n > 10 {
		t.Errorf("%d reads of DPUs for one approved request", n)
	}

	var events eventsv1.EventList

	must.Do(t, env.Client.List(t.Context(), &events, client.InNamespace(w.bridge.Namespace)))

	if n := len(events.Items); n > maxFloodEvents+1 { // and one of the approval
		t.Errorf("the bridge has %d events", n)
	}

	if notes := w.eventNotes(t, "further ones have no events"); strings.Count(notes, "\n") != 0 || notes == "" {
		t.Errorf("the events do not say once that events are missing: %q", notes)
	}

	t.Logf("%d reconciles, %d reads of DPUs, %d events", w.beside.reconciles.Load(), w.beside.dpuReads.Load(), len(events.Items))
}

// createFlood creates requests for nodes that are no DPUs, requests with another organization, and a large one, which
// would otherwise be approved.
func (w *workers) createFlood(t *testing.T) {
	t.Helper()

	requester, err := client.New(env.ServiceAccount(t, workersNamespace, workersAccount), client.Options{Scheme: env.Scheme})
	must.Do(t, err)

	large := newClientCase("dpu-large")
	w.prepareCase(t, "dpu-large", large)

	object := newRequest(t, large)
	object.Annotations = map[string]string{"example.com/large": strings.Repeat("x", 200<<10)}
	must.Do(t, requester.Create(t.Context(), object))
	w.waitForDecision(t, object, csr.ReasonRequest)

	requests := make(chan *certificatesv1.CertificateSigningRequest)

	var creators sync.WaitGroup

	for range 8 {
		creators.Go(func() {
			for request := range requests {
				if err := requester.Create(t.Context(), request); err != nil {
					t.Error(err)
				}
			}
		})
	}

	for i := range floodSize - 1 {
		request := newClientCase(fmt.Sprintf("nobody-%d", i))
		if i%2 == 0 {
			request.template.Subject.Organization = []string{"system:masters"}
		}

		requests <- newRequest(t, request)
	}

	close(requests)
	creators.Wait()
}

func newRequest(t *testing.T, a csrCase) *certificatesv1.CertificateSigningRequest {
	t.Helper()

	return &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "csr-"},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request: encode(t, &a.template), SignerName: a.signer, Usages: a.usages,
		},
	}
}
