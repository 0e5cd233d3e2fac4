// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package step_test

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/leanovate/gopter"
	"github.com/leanovate/gopter/gen"
	"github.com/leanovate/gopter/prop"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/kit/property"
	"github.com/hyperfleet/hyperfleet/kit/step"
)

// outcome is a generated result of a step.
type outcome struct {
	kind    int
	reason  string
	message string
}

func (o outcome) result() step.Result {
	switch o.kind {
	case 0, 1, 2, 3:
		return step.Done()
	case 4:
		return step.Wait(time.Second, o.reason, o.message)
	case 5:
		return step.Stall(o.reason, o.message)
	case 6:
		return step.Fail(errclass.New(errclass.Resource, o.reason, "%s", o.message))
	default:
		panic(o.message)
	}
}

func genOutcomes() gopter.Gen {
	// One in ten messages is longer than the limit of a condition.
	messages := gen.Frequency(map[int]gopter.Gen{9: gen.AnyString(), 1: gen.AlphaString().Map(func(s string) string {
		return strings.Repeat(s+"é", 1+20000/(len(s)+2))
	})})

	return gen.SliceOfN(5, gopter.CombineGens(gen.IntRange(0, 7), gen.AnyString(), messages).Map(
		func(values []any) outcome {
			return outcome{kind: values[0].(int), reason: values[1].(string), message: values[2].(string)}
		}))
}

// findInvalidCondition returns the reason for which the API server would reject the conditions.
func findInvalidCondition(conditions []metav1.Condition) string {
	reason := regexp.MustCompile(`^[A-Z][A-Za-z0-9]*$`)
	seen := map[string]bool{}

	for _, c := range conditions {
		switch {
		case seen[c.Type]:
			return "two conditions " + c.Type
		case !reason.MatchString(c.Reason) || len(c.Reason) > 1024:
			return fmt.Sprintf("reason %q of %s", c.Reason, c.Type)
		case len(c.Message) > 32768 || !utf8.ValidString(c.Message):
			return "message of " + c.Type
		case c.LastTransitionTime.IsZero() || c.ObservedGeneration != 3:
			return "time or generation of " + c.Type
		}

		seen[c.Type] = true
	}

	return ""
}

// checkRun runs the outcomes as a list of steps and returns a description of a wrong outcome.
func checkRun(t *testing.T, outcomes []outcome) string {
	t.Helper()

	spans := tracetest.NewInMemoryExporter()
	registry := prometheus.NewRegistry()

	metrics, err := step.NewMetrics(registry)
	if err != nil {
		t.Fatal(err)
	}

	fixture, obj := newFixture(t, newWidget())
	runner := &step.Reconciler{
		Client: fixture.client, Controller: "widget", Metrics: metrics,
		Tracer: sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans)).Tracer("test"),
	}

	var ran []string

	steps := make([]step.Step[*[]string], len(outcomes))
	stop := len(outcomes)

	for i, o := range outcomes {
		name := fmt.Sprintf("Step%d", i)
		steps[i] = step.Step[*[]string]{Condition: name, Run: func(_ context.Context, ran *[]string) step.Result {
			*ran = append(*ran, name)

			return o.result()
		}}

		if o.kind > 3 && stop == len(outcomes) {
			stop = i
		}
	}

	result, err := step.ReconcileSteps(t.Context(), runner, obj, steps, &ran)
	got := fixture.getWidget(t)
	wantRan := min(stop+1, len(outcomes))
	stopped := stop < len(outcomes)

	switch {
	case len(ran) != wantRan:
		return fmt.Sprintf("%d steps ran, want %d", len(ran), wantRan)
	case fixture.statusPatches != 1:
		return fmt.Sprintf("%d patches", fixture.statusPatches)
	case stopped == meta.IsStatusConditionTrue(got.Status.Conditions, step.Ready):
		return "Ready does not follow the list"
	case (err != nil) != (stopped && outcomes[stop].kind >= 6):
		return fmt.Sprintf("error %v", err)
	case (result.RequeueAfter > 0) != (stopped && outcomes[stop].kind < 6):
		return fmt.Sprintf("result %v", result)
	case len(spans.GetSpans()) != wantRan:
		return fmt.Sprintf("%d spans", len(spans.GetSpans()))
	case (spans.GetSpans()[wantRan-1].Status.Code == codes.Error) != (err != nil):
		return "the last span does not have the failure"
	case testutil.CollectAndCount(registry, "hyperfleet_step_duration_seconds") != wantRan:
		return "not one series per step"
	}

	for i := range outcomes {
		want := metav1.ConditionTrue
		if i == stop {
			want = metav1.ConditionFalse
		} else if i > stop {
			want = metav1.ConditionUnknown
		}

		if !meta.IsStatusConditionPresentAndEqual(got.Status.Conditions, fmt.Sprintf("Step%d", i), want) {
			return fmt.Sprintf("condition Step%d is not %s", i, want)
		}
	}

	return findInvalidCondition(got.Status.Conditions)
}

func TestAnyListOfResults(t *testing.T) {
	t.Parallel()

	property.Check(t, "stops at the first step not done, patches once, conditions are well-formed", property.Options{},
		prop.ForAll(func(outcomes []outcome) string { return checkRun(t, outcomes) }, genOutcomes()))
}
