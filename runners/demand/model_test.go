// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demand_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/leanovate/gopter/gen"
	"github.com/leanovate/gopter/prop"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/property"
	"github.com/hyperfleet/hyperfleet/runners/demand"
	"github.com/hyperfleet/hyperfleet/workload/github"
)

// jobStates is a simple model of the platform: the status of each job.
type jobStates map[int]string

func (o jobStates) count(status string) int {
	n := 0

	for _, s := range o {
		if s == status {
			n++
		}
	}

	return n
}

// delivery is one webhook.
type delivery struct {
	id     int
	status string
}

// generateWebhooks takes up to the given number of jobs through a part of their lifecycles. It returns their
// final states, and all webhooks in the order in which they were sent.
func generateWebhooks(generator *rand.Rand, jobs int) (jobStates, []delivery) {
	truth, sent := jobStates{}, []delivery{}
	lives := [][]string{
		{"queued", "in_progress", "completed"}, {"waiting", "queued", "in_progress", "completed"},
		{"queued", "completed"}, {"waiting", "completed"},
	}

	timestamp := map[int][]string{}
	for id := 1; id <= jobs; id++ {
		life := lives[generator.IntN(len(lives))]
		timestamp[id] = life[:1+generator.IntN(len(life))]
	}

	for len(timestamp) > 0 {
		id := slices.Sorted(maps.Keys(timestamp))[generator.IntN(len(timestamp))]
		truth[id] = timestamp[id][0]
		sent = append(sent, delivery{id, timestamp[id][0]})

		if timestamp[id] = timestamp[id][1:]; len(timestamp[id]) == 0 {
			delete(timestamp, id)
		}
	}

	return truth, sent
}

// deliverUnreliably delivers webhooks as networks do: some late, some twice, and some never.
func deliverUnreliably(generator *rand.Rand, sent []delivery, lost, again, late float64) []delivery {
	var out []delivery

	for _, d := range sent {
		if generator.Float64() < lost {
			continue
		}

		out = append(out, d)
		if generator.Float64() < again {
			out = append(out, d)
		}
	}

	generator.Shuffle(len(out), func(i, j int) {
		if generator.Float64() < late {
			out[i], out[j] = out[j], out[i]
		}
	})

	return out
}

// However webhooks are lost, duplicated, delayed or replayed, the ledger has the same number of jobs as the
// model after the platform has confirmed their states, and the pool wants as many machines as the model
// requires. If no webhook is lost, no confirmation is needed. The webhooks are GitHub's own, are signed, and
// go through the Receiver to a real API server.
//
// Feature: hyperfleet-operator, Property 13: Webhook-Based Autoscaling
func TestPropertyDemandIsState(t *testing.T) {
	t.Parallel()

	receiver := newTestReceiver(env.Client, nil)
	ledger := &demand.Ledger{Client: env.Client, Live: env.Client, Platforms: newPlatforms()}

	// A run makes about fifty writes to the API server.
	stories := property.Options{Brief: 10}

	property.Check(t, "the ledger agrees with the oracle", stories, prop.ForAllNoShrink(func(seed int64, jobs, limit, least int, lost float64) string {
		namespace := env.Namespace(t)
		// Only one pool serves the repository of a run.
		repository := namespace + "/app"
		own := createPool(t, namespace, "linux", repository, "s", "linux")
		own.Spec.Scaling.MinReplicas, own.Spec.Scaling.MaxReplicas = int32(least), int32(least+limit)
		generator := rand.New(rand.NewPCG(uint64(seed), 1))

		if lost < .5 { // half of the runs lose no webhook
			lost = 0
		}

		truth, sent := generateWebhooks(generator, jobs)
		arrived := deliverUnreliably(generator, sent, lost, .3, .5)

		for _, d := range append(arrived, deliverUnreliably(generator, arrived, .7, 0, 1)...) {
			if got := sendWithRetries(receiver, newWebhookBody(repository, d.id, d.status, "linux")); got.Code != http.StatusAccepted {
				return fmt.Sprintf("webhook %v: status %d %s", d, got.Code, got.Body)
			}
		}

		if lost > 0 {
			for id, status := range truth {
				if problem := recordState(t.Context(), ledger, namespace, repository, id, status); problem != "" {
					return problem
				}
			}
		}

		return findDifference(t.Context(), truth, own)
	}, gen.Int64(), gen.IntRange(1, 6), gen.IntRange(0, 8), gen.IntRange(0, 3), gen.Float64Range(0, 1)))
}

// sendWithRetries sends a webhook until the response is not 503, because the API server of a busy computer
// may not respond in time.
func sendWithRetries(receiver http.Handler, body []byte) *httptest.ResponseRecorder {
	patience := time.Now().Add(time.Minute)

	for {
		got := serveRequest(receiver, newWebhookRequest(body, "s"))
		if got.Code != http.StatusServiceUnavailable || time.Now().After(patience) {
			return got
		}
	}
}

// recordState records the state that the platform reports for a job, as polls and confirmations do.
func recordState(ctx context.Context, ledger *demand.Ledger, namespace, repository string, id int, status string) string {
	req := newWebhookRequest(newWebhookBody(repository, id, status, "linux"), "s")

	job, _, err := github.Webhooks{}.ParseJob(req.Header, newWebhookBody(repository, id, status, "linux"))
	if err == nil {
		_, err = ledger.Record(ctx, namespace, job, time.Now())
	}

	if err != nil {
		return err.Error()
	}

	return ""
}

// findDifference compares the ledger with the model, and the decision with the decision for the model.
func findDifference(ctx context.Context, truth jobStates, own *v1alpha1.RunnerPool) string {
	var jobs v1alpha1.RunnerJobList
	if err := env.Client.List(ctx, &jobs, client.InNamespace(own.Namespace)); err != nil {
		return err.Error()
	}

	seen := newPlatforms().NewPool(own, nil)
	count, _ := demand.FindDemand(jobs.Items, []demand.Pool{seen}, seen.Key())

	if count.Queued != truth.count("queued") || count.Running != truth.count("in_progress") {
		var states []string
		for i := range jobs.Items {
			states = append(states, jobs.Items[i].Name+"="+string(jobs.Items[i].Spec.State))
		}

		return fmt.Sprintf("counted %+v of %v; the ledger has %s", count, truth, strings.Join(states, " "))
	}

	low, high := int(own.Spec.Scaling.MinReplicas), int(own.Spec.Scaling.MaxReplicas)
	in := demand.Input{Min: low, Max: high, Queued: count.Queued, Now: time.Now()}

	for i := range count.Running {
		in.Claims = append(in.Claims, demand.Claim{Name: strconv.Itoa(i), State: demand.ClaimBusy, CreatedAt: in.Now})
	}

	want := min(max(low, truth.count("queued")+truth.count("in_progress")), high)
	if got := demand.Decide(in); got.Desired != want || len(got.Delete) > 0 {
		return fmt.Sprintf("decided %+v, want %d machines", got, want)
	}

	return ""
}
