// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package sentinel_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/hyperfleet/hyperfleet/api/config/platform"
	"github.com/hyperfleet/hyperfleet/test/fleetapi"
	"github.com/hyperfleet/hyperfleet/test/must"
	"github.com/hyperfleet/hyperfleet/test/timing"
)

// blockedBroker is a broker that accepts no event until it is released.
type blockedBroker struct {
	*recordingBroker

	released chan struct{}
}

// Publish waits until the broker is released.
func (b *blockedBroker) Publish(ctx context.Context, topic string, e cloudevents.Event) error {
	select {
	case <-b.released:
		return b.recordingBroker.Publish(ctx, topic, e)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// TestPendingResources checks that the metric counts all resources whose event is due and not sent: those in the
// queue, those that are being sent, and those that wait for their next attempt.
func TestPendingResources(t *testing.T) {
	t.Parallel()

	const count = 20

	a, to := serve(t), &blockedBroker{newRecordingBroker(t), make(chan struct{})}
	s := startReplica(t, newConfig(a.url), to).waitUntilReady(t)

	ids := make([]string, count)
	for i := range ids {
		ids[i] = a.create("/clusters", fmt.Sprintf("pending-%02d", i), nil).Id
	}

	timing.WaitUntil(t, "all events are pending", func() bool { return s.sumMetric(t, "pending_resources", "") == count })

	to.setRejected(ids[0], true)
	close(to.released)
	timing.WaitUntil(t, "only the rejected event is pending", func() bool { return s.sumMetric(t, "pending_resources", "") == 1 })

	to.setRejected(ids[0], false)
	timing.WaitUntil(t, "no event is pending", func() bool { return s.sumMetric(t, "pending_resources", "") == 0 })
}

// TestDroppedReports restores the database so that all cursors and generations stay, and checks that the API drops the
// reports, and that a Sentinel that runs and one that is started afterwards send an event for each resource at once.
func TestDroppedReports(t *testing.T) {
	t.Parallel()

	url := database.NewDatabase(t)
	served, err := fleetapi.Open(t.Context(), url, platform.Entity{Kind: "Cluster", Plural: "clusters", RequiredAdapters: []string{"dns"}})
	must.Do(t, err)

	server := httptest.NewServer(served)

	t.Cleanup(func() {
		served.Close()
		server.Close()
	})

	a, running, started := &api{t: t, url: server.URL, store: served.Store}, newRecordingBroker(t), newRecordingBroker(t)

	var ids []string

	for _, name := range []string{"one", "two"} {
		ids = append(ids, a.create("/clusters", name, nil).Id)
		a.report(ids[len(ids)-1], 1, "True")
	}

	c := newConfig(a.url)
	first := startReplica(t, c, running).waitUntilReady(t)

	conn, err := pgx.Connect(t.Context(), url)
	must.Do(t, err)

	// The row of a dump is written by another transaction than the one that it names.
	_, err = conn.Exec(t.Context(), "update incarnation set written_by = written_by")
	must.Do(t, errors.Join(err, conn.Close(t.Context())))

	c.Lease = "another"
	second := startReplica(t, c, started).waitUntilReady(t)

	for _, id := range ids {
		running.waitForEvents(id, 1)
		started.waitForEvents(id, 1)
	}

	for _, replica := range []*replica{first, second} {
		timing.WaitUntil(t, "the events say why they were sent", func() bool {
			return replica.sumMetric(t, "events_published_total", `reason="restored"`) == float64(len(ids))
		})
	}
}

// TestRestoredResources changes the database as a restore does, and checks that events are sent for a resource whose
// generation went back, also when it reaches the generation of the last event again, and for a resource whose name
// has another ID.
func TestRestoredResources(t *testing.T) {
	t.Parallel()

	url := database.NewDatabase(t)
	served, err := fleetapi.Open(t.Context(), url, platform.Entity{Kind: "Cluster", Plural: "clusters", RequiredAdapters: []string{"dns"}})
	must.Do(t, err)

	server := httptest.NewServer(served)

	t.Cleanup(func() {
		served.Close()
		server.Close()
	})

	a, to := &api{t: t, url: server.URL, store: served.Store}, newRecordingBroker(t)
	restore := func(statement string, arguments ...any) {
		t.Helper()

		conn, err := pgx.Connect(t.Context(), url)
		must.Do(t, err)

		_, err = conn.Exec(t.Context(), statement, arguments...)
		must.Do(t, errors.Join(err, conn.Close(t.Context())))
	}
	c := newConfig(a.url)
	c.RelistInterval = time.Second
	startReplica(t, c, to).waitUntilReady(t)

	patch := func(id string) {
		t.Helper()
		a.do(http.MethodPatch, "/clusters/"+id, map[string]any{"spec": map[string]any{"size": time.Now().UnixNano()}}, nil)
	}
	cluster := a.create("/clusters", "restored", nil)
	// No event is due for a generation whose report comes before Sentinel has seen the resource.
	to.waitForEvents(cluster.Id, 1)
	a.report(cluster.Id, 1, "True")
	restore("create table saved as select * from resources; create table saved_statuses as select * from statuses")

	for count := 2; count <= 3; count++ {
		patch(cluster.Id)
		to.waitForEvents(cluster.Id, count)
	}

	a.report(cluster.Id, 3, "True")

	restore("update resources r set generation = s.generation, conditions = s.conditions, reported = s.reported from saved s " +
		"where s.id = r.id; delete from statuses; insert into statuses select * from saved_statuses")

	if data := to.waitForEvents(cluster.Id, 4); data["generation"] != 1.0 {
		t.Errorf("event after the restore: %v", data)
	}

	restore("update resources set generation = 2 where id = $1", cluster.Id)
	patch(cluster.Id)

	data := to.waitForEvents(cluster.Id, 5)
	if data["generation"] == 2.0 { // a list between the two changes
		data = to.waitForEvents(cluster.Id, 6)
	}

	if data["generation"] != 3.0 {
		t.Errorf("event after another change: %v", data)
	}

	other := a.create("/clusters", "other-id", nil)
	to.waitForEvents(other.Id, 1)

	id := uuid.NewString()
	restore("update resources set id = $2 where id = $1", other.Id, id)
	to.waitForEvents(id, 1)
}

// TestReadinessOfTheLease checks that a replica is not ready if the API does not accept requests for the lease,
// although it answers all others, and that the error names the cause.
func TestReadinessOfTheLease(t *testing.T) {
	t.Parallel()

	a := serve(t)
	s := startReplica(t, newConfig(a.url), newRecordingBroker(t)).waitUntilReady(t)
	s.intercept(func(r *http.Request) (*http.Response, error) {
		if strings.Contains(r.URL.Path, "/leases/") {
			return nil, errors.New("the database is read-only")
		}

		return nil, nil //nolint:nilnil // the request passes
	})

	timing.WaitUntil(t, "the replica is not ready", func() bool {
		err := s.CheckReady(t.Context())

		return err != nil && strings.Contains(err.Error(), "lease") && strings.Contains(err.Error(), "the database is read-only")
	})

	s.intercept(nil)
	s.waitUntilReady(t)
}

// TestNumbersAreExact checks that an event has the same number as the resource, and that a decision compares it.
func TestNumbersAreExact(t *testing.T) {
	t.Parallel()

	const number = "9007199254740993" // 2^53+1

	a, to := serve(t), newRecordingBroker(t)
	c := newConfig(a.url)
	c.MessageDecision = &platform.Decision{Result: "resource.spec.size == " + number}
	c.MessageData = map[string]any{"size": "resource.spec.size"}
	s := startReplica(t, c, to).waitUntilReady(t)
	s.intercept(func(r *http.Request) (*http.Response, error) {
		resp, err := http.DefaultTransport.RoundTrip(r)
		if err != nil || !strings.HasSuffix(r.URL.Path, "/clusters") {
			return resp, err
		}

		body, err := io.ReadAll(resp.Body)
		err = errors.Join(err, resp.Body.Close())
		resp.Body = io.NopCloser(strings.NewReader(strings.ReplaceAll(string(body), `"size":3`, `"size":`+number)))

		return resp, err
	})

	cluster := a.create("/clusters", "exact", nil)
	to.waitForEvents(cluster.Id, 1)

	if data := string(to.listEvents(cluster.Id)[0].Data()); !strings.Contains(data, `"size":`+number) {
		t.Errorf("data %s", data)
	}
}
