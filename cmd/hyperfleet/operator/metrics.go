// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"fmt"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	bridgev1 "github.com/hyperfleet/hyperfleet/api/bridge/v1alpha1"
	config "github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	infrav1 "github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/cmd/internal/version"
	"github.com/hyperfleet/hyperfleet/kit/metrics"
	"github.com/hyperfleet/hyperfleet/kit/readiness"
	"github.com/hyperfleet/hyperfleet/kit/strictyaml"
	"github.com/hyperfleet/hyperfleet/runners/demand"
)

// registerMetrics adds what all areas share: what the program was built from, and which of the
// areas' objects are ready.
func registerMetrics(registry prometheus.Registerer, mgr ctrl.Manager, areas []string) error {
	build := version.Read()
	if err := metrics.RegisterBuildInfo(registry, "hyperfleet-operator", build.Version, build.Commit, build.Go); err != nil {
		return err
	}

	var kinds []readiness.Kind
	for _, area := range areas {
		kinds = append(kinds, kindsOf(area)...)
	}

	if err := registry.Register(readiness.New(mgr.GetClient(), mgr.Elected(), kinds...)); err != nil {
		return fmt.Errorf("register metrics of readiness: %w", err)
	}

	return nil
}

// kindsOf are the kinds of an area that have a condition Ready. Those that people write are
// named in the metrics; those that come and go with jobs are counted.
func kindsOf(area string) []readiness.Kind {
	return map[string][]readiness.Kind{
		config.AreaRunners: {
			{Name: "HypervisorCluster", Named: true, List: func() client.ObjectList { return &v1alpha1.HypervisorClusterList{} }},
			{Name: "HypervisorMachineTemplate", Named: true, List: func() client.ObjectList {
				return &v1alpha1.HypervisorMachineTemplateList{}
			}},
			{Name: "RunnerPool", Named: true, List: func() client.ObjectList { return &v1alpha1.RunnerPoolList{} }},
			{Name: "MachineClaim", List: func() client.ObjectList { return &v1alpha1.MachineClaimList{} }},
			{Name: "RunnerJob", List: func() client.ObjectList { return &v1alpha1.RunnerJobList{} }},
		},
		config.AreaNetworking: {
			{Name: "KubevirtNodePool", Named: true, List: func() client.ObjectList { return &infrav1.KubevirtNodePoolList{} }},
			{Name: "KubevirtMachine", List: func() client.ObjectList { return &infrav1.KubevirtMachineList{} }},
			{Name: "DNSRegistration", List: func() client.ObjectList { return &v1alpha1.DNSRegistrationList{} }},
		},
		config.AreaHosts: {
			{Name: "HostFleet", Named: true, List: func() client.ObjectList { return &infrav1.HostFleetList{} }},
			{Name: "LinuxMachine", Named: true, List: func() client.ObjectList { return &infrav1.LinuxMachineList{} }},
			{Name: "ScalewayAppleSiliconMachine", Named: true, List: func() client.ObjectList {
				return &infrav1.ScalewayAppleSiliconMachineList{}
			}},
		},
		config.AreaBridge: {
			{Name: "DPFHCPBridge", Named: true, List: func() client.ObjectList { return &bridgev1.DPFHCPBridgeList{} }},
		},
	}[area]
}

// metricsSettings checks what the types can't say.
func metricsSettings(cfg config.Metrics) error {
	labels := []string{demand.JobLabelRepository, demand.JobLabelWorkflow}

	for i, label := range cfg.JobLabels {
		if !slices.Contains(labels, label) || slices.Contains(cfg.JobLabels[:i], label) {
			return strictyaml.ErrorAt("metrics.jobLabels", "%q is not one of %v, each at most once", label, labels)
		}
	}

	if cfg.MaxJobLabelValues < 1 {
		return strictyaml.ErrorAt("metrics.maxJobLabelValues", "it must be at least 1")
	}

	return nil
}
