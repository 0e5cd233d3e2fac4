// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	virtv1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/sim/kubevirt/crds"
	"github.com/hyperfleet/hyperfleet/test/exe"
	"github.com/hyperfleet/hyperfleet/test/fleet"
	"github.com/hyperfleet/hyperfleet/test/kube"
)

var (
	env *kube.Env
	// programs is the folder of the programs that KubeVirt machines run.
	programs string
)

// parallelTests is the number of tests that run in parallel. It is high because tests mostly wait for machines.
const parallelTests = "8"

func TestMain(m *testing.M) { os.Exit(runTests(m)) }

func runTests(m *testing.M) int {
	flag.Parse()

	if err := flag.Set("test.parallel", parallelTests); err != nil {
		panic(err)
	}

	return exe.RunWith(func(dir string) int {
		programs = dir

		return kube.Run(m, &env, kube.ForArea("runners"), kube.WithScheme(virtv1.AddToScheme), kube.WithSetup(crds.Install,
			func(ctx context.Context, _ *rest.Config) error { return env.Client.Create(ctx, newNetworkCRD()) }))
	}, "cmd/bootstrap-service", "cmd/forgesim")
}

// TestQueuedJobsGetMachines checks that queued jobs get machines within the limit of their pool, that events report
// what the pool does, and that each job's timeline reports the end of its machine.
func TestQueuedJobsGetMachines(t *testing.T) {
	t.Parallel()

	const jobs = 3

	f := newFastFleet(t, fleet.Options{})
	f.Populate(2)
	f.Start()
	f.EventuallyReady(f.NewPool(0))
	queueJobs(f, jobs)
	f.EventuallyJobsDone(jobs)

	for _, reason := range []string{
		"Connected", "TemplateReady", "ScalingUp",
	} {
		f.EventuallyEvent(reason)
	}

	f.EventuallyClean()

	if made := f.CountClones(); made != jobs {
		t.Errorf("%d VMs were created for %d jobs", made, jobs)
	}

	f.Eventually("the ends of the machines in the timelines", func() (bool, string) {
		return hasEnds(f, jobs)
	})

	var secret corev1.Secret
	if err := f.Client.Get(t.Context(), client.ObjectKey{Namespace: f.Namespace, Name: "github"}, &secret); err != nil {
		t.Fatal(err)
	}

	for _, text := range f.Events() {
		if strings.Contains(text, string(secret.Data["pat"])) {
			t.Errorf("an event contains the token: %s", text)
		}
	}
}

// hasEnds reports whether the timelines of all jobs have the end of their machine with its reason.
func hasEnds(f *fleet.Fleet, jobs int) (bool, string) {
	var list v1alpha1.RunnerJobList
	if err := f.Client.List(f.T.Context(), &list, client.InNamespace(f.Namespace)); err != nil {
		return false, err.Error()
	}

	ended := 0

	for i := range list.Items {
		for _, event := range list.Items[i].Status.Timeline {
			if event.Moment == v1alpha1.MomentDestroyed && strings.HasSuffix(event.Message, "is gone: "+guest.ReasonJobDone) {
				ended++
			}
		}
	}

	return ended == jobs, fmt.Sprintf("%d of %d jobs have the end of their machine", ended, jobs)
}
