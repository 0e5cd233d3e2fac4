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

// choice is one of what HyperShift may say in one place.
type choice func(*unstructured.Unstructured)

// saying is a condition's choices: none, and all of its statuses, reasons, messages and
// generations.
func saying(name string, reasons ...string) []choice {
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

// setting is a field's choices.
func setting(values []any, path ...string) []choice {
	out := []choice{func(*unstructured.Unstructured) {}}
	for _, value := range values {
		out = append(out, func(object *unstructured.Unstructured) {
			_ = unstructured.SetNestedField(object.Object, value, path...)
		})
	}

	return out
}

// choices of all that HyperShift may say of a HostedCluster.
func choices() [][]choice {
	release := func(image, state string) any { return []any{map[string]any{"image": image, "state": state}} }

	return [][]choice{
		saying(hypershift.Available, "AsExpected", "WaitingForAvailable"),
		saying(hypershift.Progressing, "AsExpected", "Blocked"),
		saying(hypershift.Degraded, "AsExpected", "UnavailableReplicas"),
		saying(hypershift.ValidConfiguration, "AsExpected", "InvalidConfiguration", "SecretNotFound"),
		saying(hypershift.SupportedHostedCluster, "AsExpected", "UnsupportedHostedCluster"),
		saying(hypershift.ValidReleaseImage, "AsExpected", "InvalidImage", "SecretNotFound"),
		saying(hypershift.ReconciliationSucceeded, "AsExpected", "ReconciliationError"),
		saying("EtcdAvailable", "QuorumAvailable", "EtcdWaitingForQuorum"),
		setting([]any{"c-admin-kubeconfig", "other"}, "status", "kubeconfig", "name"),
		setting([]any{"api.example.com", "10.0.0.1"}, "status", "controlPlaneEndpoint", "host"),
		setting([]any{int64(6443), int64(30000)}, "status", "controlPlaneEndpoint", "port"),
		setting([]any{release("image", "Partial"), release("image", "Completed"), release("other", "Completed")}, "status", "version", "history"),
		setting([]any{release("image", "Partial"), release("image", "Completed")}, "status", "controlPlaneVersion", "history"),
		setting([]any{"b"}, "metadata", "labels", hypershift.LabelName),
		setting([]any{"10"}, "metadata", "resourceVersion"),
	}
}

// said is a HostedCluster of which HyperShift says what is chosen.
func said(chosen []int) *unstructured.Unstructured {
	cluster := hypershift.New(hypershift.HostedClusterKind())
	cluster.SetGeneration(2)
	cluster.Object["spec"] = map[string]any{"release": map[string]any{"image": "image"}}

	for i, all := range choices() {
		all[chosen[i]%len(all)](cluster)
	}

	return cluster
}

// use is what passes make of a HostedCluster: where the list of steps stops for it, and all
// that is told of it or written because of it.
func use(ctx context.Context, cluster *unstructured.Unstructured) (stops, all string) {
	var place, told strings.Builder

	for _, exposed := range []bool{false, true} {
		s := &scope{cluster: cluster, bridge: &v1alpha1.DPFHCPBridge{
			ObjectMeta: metav1.ObjectMeta{Name: "b", Namespace: "a"},
			Spec:       v1alpha1.DPFHCPBridgeSpec{ExposeThroughLoadBalancer: exposed, BaseDomain: "example.com"},
		}}
		accepted := hostedClusterAccepted(ctx, s)
		fmt.Fprintln(&place, accepted.IsStalled())
		fmt.Fprintf(&told, "%+v %+v %s %s\n", hostedClusterSeen(ctx, s), accepted, s.endpoint(), s.hyperShiftFailed())
	}

	for _, before := range []bool{false, true} {
		well := controlPlane(hypershift.Conditions(cluster), hypershift.RolledOut(cluster), before)
		fmt.Fprintln(&place, well.IsDone(), well.Reason())
		fmt.Fprintf(&told, "%+v\n", well)

		if well.IsDone() {
			fmt.Fprintln(&place, hypershift.Kubeconfig(cluster))
		}
	}

	fmt.Fprintln(&told, hypershift.Kubeconfig(cluster), cluster.GetLabels(), cluster.GetGeneration())

	return place.String(), place.String() + told.String()
}

// What the predicate drops, no pass could use; and what is gathered leaves the list of steps
// where it stopped. A wake that is lost would leave a bridge waiting for five minutes, or
// for ever.
func TestWhatIsDroppedIsOfNoUse(t *testing.T) {
	t.Parallel()

	places := len(choices())
	dropped, gathered, atOnce := 0, 0, 0

	property.Check(t, "what is dropped is of no use", property.Options{Runs: 3000}, prop.ForAll(
		func(chosen []int, place, to int) string {
			then := append([]int{}, chosen...)
			then[place] = to

			was, is := said(chosen), said(then)
			stopped, before := use(t.Context(), was)
			stops, after := use(t.Context(), is)
			update := event.UpdateEvent{ObjectOld: client.Object(was), ObjectNew: client.Object(is)}

			switch {
			case !hostedClusterNews().Update(update):
				dropped++

				if before != after {
					return fmt.Sprintf("dropped, and of use:\n%s\n%s", before, after)
				}
			case !changed(hostedClusterDecides).Update(update):
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
