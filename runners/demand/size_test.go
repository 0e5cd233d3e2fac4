// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demand_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/leanovate/gopter/gen"
	"github.com/leanovate/gopter/prop"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/runners/demand"
	"github.com/hyperfleet/hyperfleet/workload"
	"github.com/hyperfleet/hyperfleet/workload/buildkite"
	"github.com/hyperfleet/hyperfleet/workload/gitea"
	"github.com/hyperfleet/hyperfleet/workload/github"
	"github.com/hyperfleet/hyperfleet/workload/gitlab"
)

// newSizeLabels allows all labels that a job can request.
func newSizeLabels() *v1alpha1.SizeLabels {
	return &v1alpha1.SizeLabels{
		MaxCPU: new(int32(16)), MaxMemory: new(resource.MustParse("64Gi")), MaxDisk: new(resource.MustParse("200Gi")),
		Images: []v1alpha1.ImageChoice{{Name: "ubuntu-24.04", TemplateRef: v1alpha1.LocalObjectReference{Name: "noble"}}},
	}
}

// newSizedPool returns a pool whose jobs may request a size.
func newSizedPool(name string, allowed *v1alpha1.SizeLabels) demand.Pool {
	out := newPool(name, newRepositoryConfig("acme/app", "linux"))
	out.SizeLabels, out.Template = allowed, "linux"

	template := &v1alpha1.HypervisorMachineTemplate{}
	template.Status.Sources = []v1alpha1.ResolvedTemplate{{ID: "9000", DiskBytes: 20 << 30}}
	out.Templates = demand.Templates{"linux": template}

	return out
}

func TestLabelsRequestSize(t *testing.T) {
	t.Parallel()

	small := &v1alpha1.SizeLabels{MaxCPU: new(int32(2))}

	for name, tc := range map[string]struct {
		labels          []string
		pools           []demand.Pool
		want, size      string
		reason, message string
	}{
		"nothing":          {labels: []string{"linux"}, want: "big"},
		"all of it":        {labels: []string{"linux", "memory=16Gi", "cpu=8", "disk=100Gi"}, want: "big", size: "cpu=8,disk=100Gi,memory=16Gi"},
		"an image":         {labels: []string{"linux", "image=ubuntu-24.04"}, want: "big", size: "image=ubuntu-24.04"},
		"the most":         {labels: []string{"linux", "cpu=16"}, want: "big", size: "cpu=16"},
		"once more":        {labels: []string{"linux", "cpu=8", "cpu=8"}, want: "big", size: "cpu=8"},
		"the smaller pool": {labels: []string{"linux", "cpu=2"}, pools: []demand.Pool{newSizedPool("a", small)}, want: "a", size: "cpu=2"},
		"the larger pool":  {labels: []string{"linux", "cpu=4"}, pools: []demand.Pool{newSizedPool("a", small)}, want: "big", size: "cpu=4"},
		"too many cores":   {labels: []string{"linux", "cpu=17"}, reason: demand.ReasonSizeRefused, message: "RunnerPool big allows 16"},
		"too much memory":  {labels: []string{"linux", "memory=65Gi"}, reason: demand.ReasonSizeRefused, message: "raise sizeLabels.maxMemory"},
		"no quantity":      {labels: []string{"linux", "memory=16GB"}, reason: demand.ReasonSizeRefused, message: "memory=16GB is not a size"},
		"no unit":          {labels: []string{"linux", "memory=16"}, reason: demand.ReasonSizeRefused, message: "with a unit such as memory=16Gi"},
		"an exponent":      {labels: []string{"linux", "memory=1e999999999"}, reason: demand.ReasonSizeRefused, message: "memory=1e999999999 is not a size"},
		"below one":        {labels: []string{"linux", "disk=1e-999999999"}, reason: demand.ReasonSizeRefused, message: "disk=1e-999999999 is not a size"},
		"below the disk":   {labels: []string{"linux", "disk=10Gi"}, reason: demand.ReasonSizeRefused, message: "already has 20Gi"},
		"no number":        {labels: []string{"linux", "cpu=+8"}, reason: demand.ReasonSizeRefused, message: "cpu=+8 is not a number of cores"},
		"no core":          {labels: []string{"linux", "cpu=0"}, reason: demand.ReasonSizeRefused, message: "cpu=0 is not a number of cores"},
		"twice":            {labels: []string{"linux", "cpu=4", "cpu=8"}, reason: demand.ReasonSizeRefused, message: "cpu twice"},
		"no such image":    {labels: []string{"linux", "image=beos"}, reason: demand.ReasonSizeRefused, message: "has [ubuntu-24.04]"},
		"an unknown key":   {labels: []string{"linux", "gpu=1"}, reason: demand.ReasonNoLabels, message: "lacks [gpu=1]"},
		"another case":     {labels: []string{"linux", "CPU=8"}, reason: demand.ReasonNoLabels, message: "lacks [CPU=8]"},
		"labels lack, too": {labels: []string{"windows", "cpu=99"}, reason: demand.ReasonNoLabels, message: "lacks [windows]"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			one := newJob(v1alpha1.JobQueued)
			one.Labels = tc.labels
			pools := append(slices.Clone(tc.pools), newSizedPool("big", newSizeLabels()))

			got, ok := demand.Match(one, pools)
			if ok != (tc.want != "") || got.Name != tc.want {
				t.Fatalf("pool %q, want %q", got.Name, tc.want)
			}

			if size, refusal := got.ParseSize(one); ok && (size.Key() != tc.size || refusal != "") {
				t.Errorf("size %q, refused: %q; want %q", size.Key(), refusal, tc.size)
			}

			if reason, message := demand.Explain(one, pools); !ok && (reason != tc.reason || !strings.Contains(message, tc.message)) {
				t.Errorf("%s: %s; want %s: ... %s ...", reason, message, tc.reason, tc.message)
			}
		})
	}
}

func TestPoolWithoutSizeLabels(t *testing.T) {
	t.Parallel()

	one := newJob(v1alpha1.JobQueued)
	one.Labels = []string{"linux", "cpu=8"}

	if _, ok := demand.Match(one, []demand.Pool{newSizedPool("plain", nil)}); ok {
		t.Error("a pool without sizeLabels accepts the job")
	}

	fixed := newSizedPool("fixed", newSizeLabels())
	fixed.Runner.Labels = []string{"linux", "cpu=8"}

	if size, _ := fixed.ParseSize(one); size.Key() != "" {
		t.Errorf("a label that all runners of the pool have requests %q", size.Key())
	}
}

// The runner labels of each platform decide whether a job of this size is accepted.
func TestSizesOnEveryPlatform(t *testing.T) {
	t.Parallel()

	for name, tc := range map[string]struct {
		rules  demand.Rules
		runner workload.RunnerSpec
		job    workload.Job
	}{
		v1alpha1.WorkloadGitHubActions: {
			github.Platform{}, workload.RunnerSpec{Scope: workload.Scope{Repository: "acme/app"}},
			workload.Job{Repository: "acme/app"},
		},
		v1alpha1.WorkloadGitLabCI: {
			gitlab.Platform{}, workload.RunnerSpec{Scope: workload.Scope{Server: "git.example.com"}},
			workload.Job{Repository: "acme/app", URL: "https://git.example.com/acme/app/-/jobs/1"},
		},
		v1alpha1.WorkloadBuildkite: {
			buildkite.Platform{}, workload.RunnerSpec{Scope: workload.Scope{Organization: "acme"}, Queue: "default"},
			workload.Job{Repository: "app", Organization: "acme", Queue: "default"},
		},
		v1alpha1.WorkloadGiteaActions: {
			gitea.Platform{}, workload.RunnerSpec{Scope: workload.Scope{Server: "git.example.com"}},
			workload.Job{Repository: "acme/app", URL: "https://git.example.com/acme/app/actions/runs/1"},
		},
	} {
		own := demand.Pool{Name: "p", Runner: tc.runner, Rules: tc.rules, SizeLabels: newSizeLabels()}
		own.Runner.Platform, own.Runner.Labels = name, []string{"os=linux"}

		one := tc.job
		one.Platform, one.ID = name, "1"

		for label, takes := range map[string]bool{"cpu=8": true, "cpu=64": false, "gpu=1": false} {
			one.Labels = []string{"os=linux", label}
			if _, ok := demand.Match(one, []demand.Pool{own}); ok != takes {
				t.Errorf("%s: a job of %v is accepted: %t", name, one.Labels, ok)
			}
		}
	}
}

func TestMachinesCountForJobsOfTheirSize(t *testing.T) {
	t.Parallel()

	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	machine := func(name string, state demand.ClaimState, size string) demand.Claim {
		return demand.Claim{Name: name, State: state, Size: size, CreatedAt: now, IdleSince: now}
	}

	for name, tc := range map[string]struct {
		in       demand.Input
		create   int
		sized    map[string]int
		gone     []string
		activate []string
	}{
		"an idle machine has another size": {
			in: demand.Input{
				Max: 4, ScaleDownDelay: time.Hour, Sizes: []string{"cpu=8"}, Claims: []demand.Claim{machine("idle", demand.ClaimIdle, "")},
			},
			sized: map[string]int{"cpu=8": 1},
		},
		"a machine of the size is starting": {
			in: demand.Input{Max: 4, Sizes: []string{"cpu=8"}, Claims: []demand.Claim{machine("new", demand.ClaimBooting, "cpu=8")}},
		},
		"a machine serves no other size": {
			in:     demand.Input{Max: 4, Sizes: []string{"", "cpu=4"}, Claims: []demand.Claim{machine("new", demand.ClaimBooting, "cpu=8")}},
			create: 1, sized: map[string]int{"cpu=4": 1},
		},
		"no standby machine is started for it": {
			in: demand.Input{
				Max: 4, WarmStopped: 1, Sizes: []string{"cpu=8"}, Claims: []demand.Claim{machine("cold", demand.ClaimStandby, "")},
			},
			sized: map[string]int{"cpu=8": 1},
		},
		"capacity is shared in turn": {
			in: demand.Input{Max: 2, Sizes: []string{"", "cpu=8", "", "cpu=4"}}, create: 1, sized: map[string]int{"cpu=8": 1},
		},
		"jobs take precedence over warm machines": {
			in: demand.Input{Min: 3, Max: 3, Sizes: []string{"cpu=8"}}, create: 2, sized: map[string]int{"cpu=8": 1},
		},
		"idle machines are deleted at once for capacity": {
			in: demand.Input{Min: 2, Max: 2, ScaleDownDelay: time.Hour, Sizes: []string{"cpu=8"}, Claims: []demand.Claim{
				machine("a", demand.ClaimIdle, ""), machine("b", demand.ClaimIdle, ""),
			}},
			gone: []string{"a"},
		},
		"busy machines are kept": {
			in: demand.Input{Max: 1, Sizes: []string{"cpu=8"}, Claims: []demand.Claim{machine("a", demand.ClaimBusy, "")}},
		},
		"a machine whose size no job requests is deleted": {
			in:   demand.Input{Max: 4, Claims: []demand.Claim{machine("left", demand.ClaimIdle, "cpu=8")}},
			gone: []string{"left"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			tc.in.Now, tc.in.Queued = now, len(tc.in.Sizes)

			got := demand.Decide(tc.in)
			deletions := make([]string, 0, len(got.Delete))

			for _, one := range got.Delete {
				deletions = append(deletions, one.Name)
			}

			if got.Create != tc.create || !maps.Equal(got.CreateBySize, tc.sized) || !slices.Equal(deletions, tc.gone) ||
				!slices.Equal(got.Activate, tc.activate) {
				t.Errorf("%+v", got)
			}
		})
	}
}

// newSizedInput returns an input with jobs and machines of several sizes.
func newSizedInput(seed int64) demand.Input {
	rng := rand.New(rand.NewPCG(uint64(seed), 1))
	sizes := []string{"", "cpu=8", "cpu=4,memory=16Gi", "image=a"}
	in := newInput(seed)

	for range in.Queued {
		in.Sizes = append(in.Sizes, sizes[rng.IntN(len(sizes))])
	}

	for i := range in.Claims {
		if in.Claims[i].State != demand.ClaimStandby { // standby machines have the pool's own size
			in.Claims[i].Size = sizes[rng.IntN(len(sizes))]
		}
	}

	return in
}

// countCreatedBySize returns how many machines of each size a decision creates, without standby machines.
func countCreatedBySize(out demand.Decision) map[string]int {
	all := maps.Clone(out.CreateBySize)
	if all == nil {
		all = map[string]int{}
	}

	all[""] = out.Create

	return all
}

// applySizedDecision is applyDecision for machines of several sizes. New machines become idle.
func applySizedDecision(in demand.Input, out demand.Decision, round int) demand.Input {
	next := finishCreation(applyDecision(in, out, round))

	for size, n := range out.CreateBySize {
		for i := range n {
			next.Claims = append(next.Claims, demand.Claim{
				Name: fmt.Sprintf("new-%d-%s-%d", round, size, i), State: demand.ClaimPending, CreatedAt: in.Now, Size: size,
			})
		}
	}

	for i, claim := range next.Claims {
		if claim.State == demand.ClaimPending || claim.State == demand.ClaimBooting {
			next.Claims[i].State, next.Claims[i].IdleSince = demand.ClaimIdle, in.Now
		}
	}

	return next
}

// countAvailable counts the machines of a size that can take a job and are not deleted.
func countAvailable(in demand.Input, out demand.Decision, size string) int {
	return countClaims(in, func(claim demand.Claim) bool {
		waits := claim.State == demand.ClaimPending || claim.State == demand.ClaimBooting || claim.State == demand.ClaimIdle

		return claim.Size == size && waits && !isDeletedBy(out, claim.Name)
	})
}

// Feature: hyperfleet-operator, Property 9: RunnerPool Scaling Behavior.
func TestPropertyScalingOfSizes(t *testing.T) {
	t.Parallel()

	checkProperty(t, "jobs that all ask for the pool's own size are as jobs without sizes", prop.ForAll(
		func(seed int64) string {
			in := newInput(seed)
			plain := demand.Decide(in)
			in.Sizes = make([]string, in.Queued)

			return cmp.Diff(plain, demand.Decide(in))
		}, gen.Int64()))

	checkProperty(t, "one pass keeps the maximum, makes no machine twice for a job, and removes none that is needed", prop.ForAll(
		func(seed int64) string {
			in := newSizedInput(seed)
			out := demand.Decide(in)
			created, queued := out.CreateStandby, map[string]int{}

			for _, size := range in.Sizes {
				queued[size]++
			}

			for size, n := range countCreatedBySize(out) {
				created += n

				if size != "" && n > max(queued[size]-countAvailable(in, out, size), 0) {
					return fmt.Sprintf("%d machines of size %s are created for %d jobs", n, size, queued[size])
				}
			}

			if out.Reason == demand.ReasonScalingUp && created+len(out.Activate) == 0 {
				return "the message says that machines are created: " + out.Message
			}

			if created > 0 && len(in.Claims)+created > in.Max {
				return fmt.Sprintf("%d machines are created in addition to %d, the maximum is %d", created, len(in.Claims), in.Max)
			}

			for _, deletions := range out.Delete {
				i := slices.IndexFunc(in.Claims, func(c demand.Claim) bool { return c.Name == deletions.Name })
				claim := in.Claims[i]

				switch surplus := deletions.Reason == demand.DeleteSurplus; {
				case claim.State == demand.ClaimBusy, claim.State == demand.ClaimFinishing:
					return "deletes a busy or finishing machine"
				case surplus && claim.State == demand.ClaimIdle && countAvailable(in, out, claim.Size) < min(queued[claim.Size], 1):
					return fmt.Sprintf("deletes the last machine of size %q, which a job waits for", claim.Size)
				case slices.Contains(out.Activate, deletions.Name):
					return "starts and deletes a machine at once"
				}
			}

			return ""
		}, gen.Int64()))

	checkProperty(t, "repeated passes give as many jobs as there is room for machines of their sizes, and then rest", prop.ForAll(
		func(seed int64) string {
			in := newSizedInput(seed)
			in.MaxLifetime, in.IdleTimeout = 0, 0

			for i := range in.Claims {
				in.Claims[i].Outdated, in.Claims[i].Bound = false, false
			}

			for round := range 60 {
				in = applySizedDecision(in, demand.Decide(in), round)
			}

			return findUnservedJobs(in)
		}, gen.Int64()))
}

// findUnservedJobs describes what is missing in the pool after its last change.
func findUnservedJobs(in demand.Input) string {
	out := demand.Decide(in)
	if len(out.Delete) > 0 || out.ShouldCreate() || len(out.Activate) > 0 {
		return fmt.Sprintf("it does not rest: %+v", out)
	}

	queued, served := map[string]int{}, 0

	for _, size := range in.Sizes {
		queued[size]++
	}

	for size, n := range queued {
		served += min(n, countAvailable(in, out, size))
	}

	if room := min(in.Max-countByState(in, demand.ClaimBusy), len(in.Sizes)); served < room {
		return fmt.Sprintf("%d jobs have a machine of their size, and there is room for %d of %q: %+v", served, room, in.Sizes, out)
	}

	return ""
}
