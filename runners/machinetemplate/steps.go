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
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/hypervisor/tenancy"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/runners/connect"
	"github.com/hyperfleet/hyperfleet/runners/vmspec"
	"github.com/hyperfleet/hyperfleet/workload"
)

// retryAfter is the delay before a check that failed with a transient error is repeated.
const retryAfter = 10 * time.Second

// renderCloudInit checks the cloud-init texts of the template: it renders them for a sample claim and discards
// the result. A mistake is therefore reported before the first machine is created. resolveTemplate checks what depends on
// the operating system that the hypervisor records: the one in the status may have been corrected.
func renderCloudInit(_ context.Context, s *scope) step.Result {
	declared := *s.template
	declared.Status.OS = ""

	if err := vmspec.DryRender(&declared, s.Settings); err != nil {
		return step.Stall(errclass.ReasonOf(err, "CloudInitInvalid"), err.Error())
	}

	return step.Done()
}

// waitForCluster waits until the cluster is ready and connected, and sets s.cluster and s.provider.
func waitForCluster(ctx context.Context, s *scope) step.Result {
	name := s.template.Spec.HypervisorClusterRef.Name

	var cluster v1alpha1.HypervisorCluster

	err := s.Client.Get(ctx, client.ObjectKey{Name: name}, &cluster)

	switch {
	case apierrors.IsNotFound(err):
		return step.Stall("ClusterNotFound",
			fmt.Sprintf("HypervisorCluster %q does not exist: create it, or correct spec.hypervisorClusterRef", name))
	case err != nil:
		return step.Fail(fmt.Errorf("get hypervisor cluster %s: %w", name, err))
	}

	if !step.IsReady(&cluster) {
		return step.Wait(retryAfter, "ClusterNotReady",
			fmt.Sprintf("HypervisorCluster %q is not ready: %s", name, step.NotReadyMessage(&cluster)))
	}

	provider, isConnected := s.Clusters.Get(name)
	if !isConnected { // the operator has just started
		return step.Wait(connect.StartupRequeueDelay, "ClusterNotReady",
			fmt.Sprintf("the operator has not connected to HypervisorCluster %q yet", name)).DeferWrite()
	}

	s.cluster, s.provider = &cluster, provider

	return step.Done()
}

// checkNamespaceAccess checks that spec.allowedNamespaces of the cluster allows the template's namespace to
// use what the template refers to.
func checkNamespaceAccess(ctx context.Context, s *scope) step.Result {
	entry, err := tenancy.FindEntry(s.cluster, s.template.Namespace, tenancy.NewLabelsFunc(ctx, s.Live, s.template.Namespace))
	if err == nil {
		err = tenancy.CheckTemplate(entry, s.cluster, s.template)
	}

	if err != nil {
		return connect.NewErrorResult(err, retryAfter, tenancy.ReasonNamespace)
	}

	return step.Done()
}

// resolveTemplate finds the template at the hypervisor, and records what it has found in status.sources.
func resolveTemplate(ctx context.Context, s *scope) step.Result {
	if err := vmspec.CheckProvider(s.template, s.cluster); err != nil {
		return connect.NewErrorResult(err, retryAfter, "TemplateInvalid")
	}

	templates, err := s.provider.Resolve(ctx, vmspec.NewTemplateRef(s.template), vmspec.NewShape(s.template))
	if err != nil {
		s.template.Status.Sources = nil

		return connect.NewErrorResult(err, retryAfter, "TemplateInvalid")
	}

	sources := make([]v1alpha1.ResolvedTemplate, 0, len(templates))
	nodes := make([]string, 0, len(templates))

	for _, t := range templates {
		sources = append(sources, v1alpha1.ResolvedTemplate{
			ID: newSourceID(t), Name: t.Name, Node: t.Node, DiskBytes: t.DiskBytes,
		})

		if t.Node != "" {
			nodes = append(nodes, t.Node)
		}
	}

	if result := checkOS(s.template, templates); !result.IsDone() {
		return result
	}

	if err := vmspec.CheckOS(s.template); err != nil {
		return connect.NewErrorResult(err, retryAfter, "TemplateInvalid")
	}

	previous := s.template.SelectedSource()
	s.template.Status.Sources = sources
	reportSelection(ctx, s.template, previous)

	found := "found "
	if selected := s.template.SelectedSource(); selected != "" {
		found = "the tags select " + selected + ", found "
	}

	if len(nodes) == 0 {
		return step.Done().WithReason("Found", found+"for every node")
	}

	return step.Done().WithReason("Found", found+"on "+strings.Join(nodes, ", "))
}

// checkOS records the operating system of the templates on the hypervisor. It stops the reconcile if they differ, or if the
// spec names another one.
func checkOS(template *v1alpha1.HypervisorMachineTemplate, templates []hypervisor.Template) step.Result {
	found, declared := "", template.DeclaredOS()

	for _, t := range templates {
		switch {
		case t.OS != "" && declared != "" && t.OS != declared:
			return step.Stall("OSMismatch", fmt.Sprintf("the hypervisor records the operating system %s for %s, and the template "+
				"names %s: correct bootstrap.os (or runner.os), or what the hypervisor records", t.OS, newSourceID(t), declared))
		case t.OS != "" && found != "" && t.OS != found:
			return step.Stall("OSMismatch", fmt.Sprintf("the hypervisor records the operating system %s for %s, and %s for another "+
				"one: give templates with different systems different names", t.OS, newSourceID(t), found))
		case t.OS != "":
			found = t.OS
		}
	}

	template.Status.OS = found

	return step.Done()
}

// reportSelection emits an event if the tags of a template select another template on the hypervisor than before.
func reportSelection(ctx context.Context, template *v1alpha1.HypervisorMachineTemplate, previous string) {
	selected := template.SelectedSource()
	if previous == "" || selected == previous {
		return
	}

	step.OnSaved(ctx, step.Event{
		Type: corev1.EventTypeNormal, Reason: "TemplateSelected", Action: "Resolve",
		Message: fmt.Sprintf("new machines are created from %s instead of %s, and pools replace their idle machines",
			selected, previous),
	}.EmitFunc(ctx))
}

// newSourceID returns the ID of a template in status.sources, in which IDs are unique. A template without a number, as
// on libvirt, exists once on each host.
func newSourceID(t hypervisor.Template) string {
	if t.ID != 0 {
		return strconv.Itoa(t.ID)
	}

	return strings.TrimPrefix(t.Node+"/"+t.Name, "/")
}

// checkPlatformCredentials checks that every CI platform for which the template has settings accepts the
// operator's credentials. It skips a platform whose scope, such as an organization or repository, only the
// pools name, because the check needs a scope.
func checkPlatformCredentials(ctx context.Context, s *scope) step.Result {
	for _, platform := range s.configuredPlatforms() {
		if result := checkPlatform(ctx, s, platform); !result.IsDone() {
			return result
		}
	}

	return s.addRunnerCondition(step.Done())
}

// configuredPlatforms returns the names of the CI platforms for which the template has settings, sorted.
func (s *scope) configuredPlatforms() []string {
	config := s.template.Spec.Bootstrap.Config
	if config == nil {
		return nil
	}

	var out []string

	for name, platform := range s.Workloads.Platforms {
		if isConfigured := platform.Traits().IsConfigured; isConfigured != nil && isConfigured(config) {
			out = append(out, name)
		}
	}

	slices.Sort(out)

	return out
}

// checkPlatform checks the credentials for one CI platform.
func checkPlatform(ctx context.Context, s *scope, platform string) step.Result {
	workloadConfig := v1alpha1.Workload{Type: platform}

	runner, err := s.Workloads.ResolveRunner(s.template, workloadConfig)
	if errclass.ReasonOf(err, "") == workload.ReasonScopeMissing {
		if s.needsRelease() {
			return step.Stall(workload.ReasonReleaseUnknown, "find the newest release of the runner: version latest needs a scope "+
				"in the template: set organization, or owner and repository, in bootstrap.config.github, or set version to a release")
		}

		return step.Done().WithReason("ScopeFromPool", "the runner pools name the scope")
	}

	// It returns any other error of ResolveRunner again.
	provider, err := s.Workloads.ProviderFor(ctx, s.template, workloadConfig)
	if err != nil {
		return connect.NewErrorResult(err, retryAfter, "CredentialsInvalid")
	}

	if err := provider.Validate(ctx); err != nil {
		return connect.NewErrorResult(err, retryAfter, "WorkloadUnavailable")
	}

	return findRelease(ctx, s, provider, runner.Program)
}

// waitForClaimRemoval waits until no claim uses the template.
func waitForClaimRemoval(ctx context.Context, s *scope) step.Result {
	var claims v1alpha1.MachineClaimList
	if err := s.Client.List(ctx, &claims, client.InNamespace(s.template.Namespace)); err != nil {
		return step.Fail(fmt.Errorf("list machine claims: %w", err))
	}

	remaining := 0

	for i := range claims.Items {
		if claims.Items[i].Spec.TemplateRef.Name == s.template.Name {
			remaining++
		}
	}

	if remaining > 0 {
		return step.Wait(retryAfter, "ClaimsLeft", english.Plural(remaining, "MachineClaim still uses the template",
			"MachineClaims still use the template")+": delete the claims, or wait until their jobs have finished")
	}

	return step.Done()
}
