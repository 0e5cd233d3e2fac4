// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// NewRegistry returns the registry of a program, with the metrics of the Go runtime and the
// process, and with hyperfleet_build_info.
func NewRegistry(program, version, commit, goVersion string) (*prometheus.Registry, error) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))

	return registry, RegisterBuildInfo(registry, program, version, commit, goVersion)
}

// RegisterBuildInfo registers hyperfleet_build_info{program,version,commit,go_version}, which
// is always 1.
func RegisterBuildInfo(registerer prometheus.Registerer, program, version, commit, goVersion string) error {
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Namespace: Namespace, Name: "build_info",
		Help: "Always 1. The labels describe the build of the program.",
		ConstLabels: prometheus.Labels{
			"program": program, "version": version, "commit": commit, "go_version": goVersion,
		},
	})
	info.Set(1)

	if err := registerer.Register(info); err != nil {
		return fmt.Errorf("register build information: %w", err)
	}

	return nil
}
