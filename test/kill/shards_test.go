// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kill_test

import (
	"slices"
	"strings"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/shards"
	"github.com/hyperfleet/hyperfleet/test/kill"
	"github.com/hyperfleet/hyperfleet/test/kube"
)

// Three operators run side by side on one API server and one hypervisor, each with its own namespace. One of them is
// killed while it creates machines. The others complete their jobs meanwhile, and it completes its own after its
// restart. No job gets a second machine, and none is lost. Each operator has only the permissions of deploy/shards: it may
// read no Secrets of another namespace, except those of the namespace that all operators run in.
func TestShardsRunSideBySide(t *testing.T) {
	const operators, jobs, killed = 3, 4, 1

	own := kube.Start(t, newKubeOptions()...)
	w := kill.NewShards(t, own, binary, operators)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(w.Logs())
		}
	})

	for i, f := range w.Fleets {
		var lease coordinationv1.Lease

		name := shards.LeaseName([]string{"runners"}, "part-"+string(rune('0'+i)))
		f.Eventually("the Lease of an operator", func() (bool, string) {
			key := client.ObjectKey{Namespace: w.Fleets[0].Namespace, Name: name}
			if err := own.Client.Get(t.Context(), key, &lease); err != nil {
				return false, err.Error()
			}

			namespaces, _ := shards.ParseLabels(lease.Labels)

			return slices.Equal(namespaces, []string{f.Namespace}), "the Lease does not name the namespace"
		})
	}

	checkLimits(t, w)
	w.Queue(jobs)
	w.AwaitMachine(killed)
	w.Kill(killed)

	for i, f := range w.Fleets {
		if i != killed {
			f.EventuallyJobsDone(jobs)
		}
	}

	w.Start(killed)
	w.Fleets[killed].EventuallyJobsDone(jobs)

	for _, f := range w.Fleets {
		f.EventuallyClean()
	}

	if logs := w.Logs(); strings.Contains(logs, "forbidden") {
		t.Errorf("an operator lacks a permission:\n%s", logs)
	}

	for _, broken := range w.Machines.Violations() {
		t.Error(broken)
	}

	if made := w.Machines.CountMachines(); made != operators*jobs {
		t.Errorf("%d machines were created for %d jobs", made, operators*jobs)
	}
}

// checkLimits checks what the account of an operator may do in the namespaces of the other operators. The first namespace
// is also the one that all operators run in.
func checkLimits(t *testing.T, w *kill.Shards) {
	t.Helper()

	for i, account := range w.Accounts {
		limited, err := client.New(account, client.Options{Scheme: w.Fleets[0].Env.Scheme})
		if err != nil {
			t.Fatal(err)
		}

		for j, f := range w.Fleets {
			meta := metav1.ObjectMeta{Namespace: f.Namespace, Name: "github"}

			err := limited.Get(t.Context(), client.ObjectKey{Namespace: meta.Namespace, Name: meta.Name}, &corev1.Secret{})
			if mayRead := i == j || j == 0; mayRead != (err == nil) || !mayRead && !apierrors.IsForbidden(err) {
				t.Errorf("operator %d reads the Secrets of namespace %d: %v", i, j, err)
			}

			err = limited.List(t.Context(), &corev1.SecretList{}, client.InNamespace(f.Namespace))
			if !apierrors.IsForbidden(err) {
				t.Errorf("operator %d lists the Secrets of namespace %d: %v", i, j, err)
			}

			for _, object := range []client.Object{&v1alpha1.MachineClaim{ObjectMeta: meta}, &v1alpha1.RunnerJob{ObjectMeta: meta}} {
				err := limited.Delete(t.Context(), object)
				if mayDelete := i == j; mayDelete != apierrors.IsNotFound(err) || !mayDelete && !apierrors.IsForbidden(err) {
					t.Errorf("operator %d deletes a %T of namespace %d: %v", i, object, j, err)
				}
			}
		}
	}
}
