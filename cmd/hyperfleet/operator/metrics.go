// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"fmt"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	bridgev1 "github.com/hyperfleet/hyperfleet/api/bridge/v1alpha1"
	config "github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	infrav1 "github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/cmd/internal/version"
	"github.com/hyperfleet/hyperfleet/kit/metrics"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/kit/strictyaml"
	"github.com/hyperfleet/hyperfleet/runners/demand"
)

// registerMetrics registers the metrics that all areas share: the build information, and the readiness of the
// objects of the given areas.
func registerMetrics(registry prometheus.Registerer, mgr ctrl.Manager, areas []string) error {
	build := version.Read()
	if err := metrics.RegisterBuildInfo(registry, "hyperfleet-operator", build.Version, build.Commit, build.Go); err != nil {
		return err
	}

	var kinds []step.ReadinessKind
	for _, area := range areas {
		kinds = append(kinds, readinessKinds(area)...)
	}

	if err := registry.Register(step.NewReadinessCollector(mgr.GetCache(), mgr.Elected(), kinds...)); err != nil {
		return fmt.Errorf("register readiness metrics: %w", err)
	}

	return nil
}

// readinessKinds returns the kinds of an area that have the condition Ready. Objects that people create have
// a metric each. Objects that are created and deleted with jobs are only counted.
func readinessKinds(area string) []step.ReadinessKind {
	return map[string][]step.ReadinessKind{
		config.AreaRunners: {
			{Name: "HypervisorCluster", PerObject: true, NewList: func() client.ObjectList { return &v1alpha1.HypervisorClusterList{} }},
			{Name: "HypervisorMachineTemplate", PerObject: true, NewList: func() client.ObjectList {
				return &v1alpha1.HypervisorMachineTemplateList{}
			}},
			{Name: "RunnerPool", PerObject: true, NewList: func() client.ObjectList { return &v1alpha1.RunnerPoolList{} }},
			{Name: "MachineClaim", NewList: func() client.ObjectList { return &v1alpha1.MachineClaimList{} }},
			{Name: "RunnerJob", NewList: func() client.ObjectList { return &v1alpha1.RunnerJobList{} }},
		},
		config.AreaNetworking: {
			{Name: "KubevirtNodePool", PerObject: true, NewList: func() client.ObjectList { return &infrav1.KubevirtNodePoolList{} }},
			{Name: "KubevirtMachine", NewList: func() client.ObjectList { return &infrav1.KubevirtMachineList{} }},
			{Name: "DNSRegistration", NewList: func() client.ObjectList { return &v1alpha1.DNSRegistrationList{} }},
		},
		config.AreaHosts: {
			{Name: "HostFleet", PerObject: true, NewList: func() client.ObjectList { return &infrav1.HostFleetList{} }},
			{Name: "LinuxMachine", PerObject: true, NewList: func() client.ObjectList { return &infrav1.LinuxMachineList{} }},
			{Name: "ScalewayAppleSiliconMachine", PerObject: true, NewList: func() client.ObjectList {
				return &infrav1.ScalewayAppleSiliconMachineList{}
			}},
		},
		config.AreaBridge: {
			{Name: "DPFHCPBridge", PerObject: true, NewList: func() client.ObjectList { return &bridgev1.DPFHCPBridgeList{} }},
		},
	}[area]
}

// validateMetrics checks the rules that the types of the configuration cannot express.
func validateMetrics(cfg config.Metrics) error {
	labels := []string{demand.JobLabelRepository, demand.JobLabelWorkflow}

	for i, label := range cfg.JobLabels {
		if !slices.Contains(labels, label) || slices.Contains(cfg.JobLabels[:i], label) {
			return strictyaml.ErrorAt("metrics.jobLabels", "%q is unknown or repeated: use each of %s at most once",
				label, strings.Join(labels, ", "))
		}
	}

	if cfg.MaxJobLabelValues < 1 {
		return strictyaml.ErrorAt("metrics.maxJobLabelValues", "it must be at least 1")
	}

	return nil
}
