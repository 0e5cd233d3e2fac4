// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machinetemplate

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize/english"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hypervisor/tenancy"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/runners/connect"
	"github.com/hyperfleet/hyperfleet/runners/vmspec"
	"github.com/hyperfleet/hyperfleet/workload"
)

// retryAfter is how soon a check that may clear by itself is made again.
const retryAfter = 10 * time.Second

// rendered renders the cloud-init texts for a claim that might be, so that a mistake in
// them is known before the first machine.
func rendered(_ context.Context, s *scope) step.Result {
	if err := vmspec.DryRender(s.template, s.Settings); err != nil {
		return step.Stall(errclass.Reason(err, "CloudInitInvalid"), err.Error())
	}

	return step.Done()
}

// clusterReady waits for the hypervisor's connection.
func clusterReady(ctx context.Context, s *scope) step.Result {
	name := s.template.Spec.HypervisorClusterRef.Name

	var cluster v1alpha1.HypervisorCluster

	err := s.Client.Get(ctx, client.ObjectKey{Name: name}, &cluster)

	switch {
	case apierrors.IsNotFound(err):
		return step.Stall("ClusterNotFound",
			fmt.Sprintf("there is no HypervisorCluster %q: create it, or correct spec.hypervisorClusterRef", name))
	case err != nil:
		return step.Fail(fmt.Errorf("get hypervisor cluster %s: %w", name, err))
	}

	notReady := fmt.Sprintf("HypervisorCluster %q is not ready: %s", name, step.WhyNot(&cluster))

	if !step.IsReady(&cluster) {
		return step.Wait(retryAfter, "ClusterNotReady", notReady)
	}

	provider, connected := s.Clusters.Get(name)
	if !connected { // this operator has just been started
		return step.Wait(connect.StartPause, "ClusterNotReady", notReady).Unhurried()
	}

	s.cluster, s.provider = &cluster, provider

	return step.Done()
}

// allowed makes sure that the cluster lets the namespace have what the template names.
func allowed(ctx context.Context, s *scope) step.Result {
	entry, err := tenancy.Find(s.cluster, s.template.Namespace, tenancy.LabelsOf(ctx, s.Live, s.template.Namespace))
	if err == nil {
		err = tenancy.Check(entry, s.cluster, s.template)
	}

	if err != nil {
		return connect.Outcome(err, retryAfter, tenancy.ReasonNamespace)
	}

	return step.Done()
}

// resolved finds the hypervisor's templates.
func resolved(ctx context.Context, s *scope) step.Result {
	if err := vmspec.CheckProvider(s.template, s.cluster); err != nil {
		return connect.Outcome(err, retryAfter, "TemplateInvalid")
	}

	found, err := s.provider.Resolve(ctx, vmspec.TemplateRef(s.template), vmspec.Shape(s.template))
	if err != nil {
		s.template.Status.Sources = nil

		return connect.Outcome(err, retryAfter, "TemplateInvalid")
	}

	sources := make([]v1alpha1.ResolvedTemplate, 0, len(found))
	nodes := make([]string, 0, len(found))

	for _, t := range found {
		sources = append(sources, v1alpha1.ResolvedTemplate{
			ID: strconv.Itoa(t.ID), Name: t.Name, Node: t.Node, DiskBytes: t.DiskBytes,
		})

		if t.Node != "" {
			nodes = append(nodes, t.Node)
		}
	}

	s.template.Status.Sources = sources

	if len(nodes) == 0 {
		return step.Done().WithReason("Found", "for every node")
	}

	return step.Done().WithReason("Found", "on "+strings.Join(nodes, ", "))
}

// workloadReady asks the CI platforms that the template has settings of whether they
// take our credentials. Where only pools name a scope, there is nothing to ask here.
func workloadReady(ctx context.Context, s *scope) step.Result {
	for _, platform := range s.platformsOf() {
		if result := platformReady(ctx, s, platform); !result.IsDone() {
			return result
		}
	}

	return step.Done()
}

// platformsOf gives the platforms that the template has settings of, in order.
func (s *scope) platformsOf() []string {
	config := s.template.Spec.Bootstrap.Config
	if config == nil {
		return nil
	}

	var out []string

	for name, platform := range s.Workloads.Platforms {
		if configured := platform.Traits().Configured; configured != nil && configured(config) {
			out = append(out, name)
		}
	}

	slices.Sort(out)

	return out
}

func platformReady(ctx context.Context, s *scope, platform string) step.Result {
	load := v1alpha1.Workload{Type: platform}

	if _, err := s.Workloads.Runner(s.template, load); errclass.Reason(err, "") == workload.ReasonScopeMissing {
		return step.Done().WithReason("ScopeFromPool", "the pools name the scope")
	}

	provider, err := s.Workloads.For(ctx, s.template, load)
	if err != nil {
		return connect.Outcome(err, retryAfter, "CredentialsInvalid")
	}

	if err := provider.Validate(ctx); err != nil {
		return connect.Outcome(err, retryAfter, "WorkloadUnavailable")
	}

	return step.Done()
}

// claimsGone keeps the template until no claim needs it.
func claimsGone(ctx context.Context, s *scope) step.Result {
	var claims v1alpha1.MachineClaimList
	if err := s.Client.List(ctx, &claims, client.InNamespace(s.template.Namespace)); err != nil {
		return step.Fail(fmt.Errorf("list machine claims: %w", err))
	}

	left := 0

	for i := range claims.Items {
		if claims.Items[i].Spec.TemplateRef.Name == s.template.Name {
			left++
		}
	}

	if left > 0 {
		return step.Wait(retryAfter, "ClaimsLeft", english.Plural(left, "MachineClaim is made from it",
			"MachineClaims are made from it")+": delete claims, or wait for jobs to end")
	}

	return step.Done()
}
