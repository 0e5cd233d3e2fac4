// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package dpfhcpbridge

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/leanovate/gopter/gen"
	"github.com/leanovate/gopter/prop"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/hyperfleet/hyperfleet/api/bridge/v1alpha1"
	"github.com/hyperfleet/hyperfleet/bridge/hypershift"
	"github.com/hyperfleet/hyperfleet/kit/property"
)

// choice sets one part of the state that HyperShift may report.
type choice func(*unstructured.Unstructured)

// conditionChoices returns the choices for a condition: no condition, and all combinations of statuses,
// reasons, messages and generations.
func conditionChoices(name string, reasons ...string) []choice {
	out := []choice{func(*unstructured.Unstructured) {}}

	for _, status := range []string{"True", "False", "Unknown"} {
		for _, reason := range reasons {
			for _, message := range []string{"", "one", "two"} {
				for _, generation := range []int64{1, 2} {
					out = append(out, func(object *unstructured.Unstructured) {
						conditions, _, _ := unstructured.NestedSlice(object.Object, "status", "conditions")
						_ = unstructured.SetNestedSlice(object.Object, append(conditions, map[string]any{
							"type": name, "status": status, "reason": reason, "message": message, "observedGeneration": generation,
							"lastTransitionTime": fmt.Sprintf("2026-01-01T00:00:%02dZ", len(out)),
						}), "status", "conditions")
					})
				}
			}
		}
	}

	return out
}

// fieldChoices returns the choices for a field.
func fieldChoices(values []any, path ...string) []choice {
	out := []choice{func(*unstructured.Unstructured) {}}
	for _, value := range values {
		out = append(out, func(object *unstructured.Unstructured) {
			_ = unstructured.SetNestedField(object.Object, value, path...)
		})
	}

	return out
}

// choices returns all choices for the state of a HostedCluster.
func choices() [][]choice {
	release := func(image, state string) any { return []any{map[string]any{"image": image, "state": state}} }

	return [][]choice{
		conditionChoices(hypershift.Available, "AsExpected", "WaitingForAvailable"),
		conditionChoices(hypershift.Progressing, "AsExpected", "Blocked"),
		conditionChoices(hypershift.Degraded, "AsExpected", "UnavailableReplicas"),
		conditionChoices(hypershift.ValidConfiguration, "AsExpected", "InvalidConfiguration", "SecretNotFound"),
		conditionChoices(hypershift.SupportedHostedCluster, "AsExpected", "UnsupportedHostedCluster"),
		conditionChoices(hypershift.ValidReleaseImage, "AsExpected", "InvalidImage", "SecretNotFound"),
		conditionChoices(hypershift.ReconciliationSucceeded, "AsExpected", "ReconciliationError"),
		conditionChoices("EtcdAvailable", "QuorumAvailable", "EtcdWaitingForQuorum"),
		fieldChoices([]any{"c-admin-kubeconfig", "other"}, "status", "kubeconfig", "name"),
		fieldChoices([]any{"api.example.com", "10.0.0.1"}, "status", "controlPlaneEndpoint", "host"),
		fieldChoices([]any{int64(6443), int64(30000)}, "status", "controlPlaneEndpoint", "port"),
		fieldChoices([]any{release("image", "Partial"), release("image", "Completed"), release("other", "Completed")}, "status", "version", "history"),
		fieldChoices([]any{release("image", "Partial"), release("image", "Completed")}, "status", "controlPlaneVersion", "history"),
		fieldChoices([]any{"b"}, "metadata", "labels", hypershift.LabelName),
		fieldChoices([]any{"10"}, "metadata", "resourceVersion"),
	}
}

// newHostedCluster returns a HostedCluster in the chosen state.
func newHostedCluster(chosen []int) *unstructured.Unstructured {
	cluster := hypershift.NewObject(hypershift.HostedClusterKind())
	cluster.SetGeneration(2)
	cluster.Object["spec"] = map[string]any{"release": map[string]any{"image": "image"}}

	for i, all := range choices() {
		all[chosen[i]%len(all)](cluster)
	}

	return cluster
}

// useCluster runs what the steps do with a HostedCluster. stops is the step at which they stop, and all
// is everything that they report or write.
func useCluster(ctx context.Context, cluster *unstructured.Unstructured) (stops, all string) {
	var stopsAt, reported strings.Builder

	for _, exposed := range []bool{false, true} {
		s := &scope{hostedCluster: cluster, bridge: &v1alpha1.DPFHCPBridge{
			ObjectMeta: metav1.ObjectMeta{Name: "b", Namespace: "a"},
			Spec:       v1alpha1.DPFHCPBridgeSpec{ExposeThroughLoadBalancer: exposed, BaseDomain: "example.com"},
		}}
		accepted := checkHostedClusterAccepted(ctx, s)
		fmt.Fprintln(&stopsAt, accepted.IsStalled())
		fmt.Fprintf(&reported, "%+v %+v %s %s\n", mirrorHostedClusterConditions(ctx, s), accepted, s.apiEndpoint(), s.reconciliationError())
	}

	for _, before := range []bool{false, true} {
		well := evaluateControlPlane(hypershift.Conditions(cluster), hypershift.IsRolledOut(cluster), before)
		fmt.Fprintln(&stopsAt, well.IsDone(), well.Reason())
		fmt.Fprintf(&reported, "%+v\n", well)

		if well.IsDone() {
			fmt.Fprintln(&stopsAt, hypershift.KubeconfigSecretName(cluster))
		}
	}

	fmt.Fprintln(&reported, hypershift.KubeconfigSecretName(cluster), cluster.GetLabels(), cluster.GetGeneration())

	return stopsAt.String(), stopsAt.String() + reported.String()
}

// TestDroppedFieldsAreUnused checks that no reconcile can use an event that the predicate drops, and
// that a batched event does not change the step at which the reconcile stops. If an event were lost, a
// bridge could wait for five minutes or forever.
func TestDroppedFieldsAreUnused(t *testing.T) {
	t.Parallel()

	places := len(choices())
	dropped, gathered, atOnce := 0, 0, 0

	property.Check(t, "what is dropped is of no use", property.Options{Runs: 3000}, prop.ForAll(
		func(chosen []int, place, to int) string {
			then := append([]int{}, chosen...)
			then[place] = to

			was, ok := newHostedCluster(chosen), newHostedCluster(then)
			stopped, before := useCluster(t.Context(), was)
			stops, after := useCluster(t.Context(), ok)
			update := event.UpdateEvent{ObjectOld: client.Object(was), ObjectNew: client.Object(ok)}

			switch {
			case !newHostedClusterPredicate().Update(update):
				dropped++

				if before != after {
					return fmt.Sprintf("dropped, and of use:\n%s\n%s", before, after)
				}
			case !newChangePredicate(readHostedClusterProgress).Update(update):
				gathered++

				if stopped != stops {
					return fmt.Sprintf("gathered, and decides:\n%s\n%s", stopped, stops)
				}
			default:
				atOnce++
			}

			return ""
		},
		gen.SliceOfN(places, gen.IntRange(0, 1000)), gen.IntRange(0, places-1), gen.IntRange(0, 1000),
	))

	if dropped == 0 || gathered == 0 || atOnce == 0 {
		t.Errorf("%d dropped, %d gathered, %d at once: not all have been tried", dropped, gathered, atOnce)
	}
}
