// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package hypershift

import "strings"

// Prefixes of MetalLB's annotations.
const (
	annotationPrefix = "metallb.io/"
	deprecatedPrefix = "metallb.universe.tf/"
)

// readAnnotations returns the annotations of a Service as MetalLB reads them, with the current prefix. If an
// annotation has both prefixes, the current one wins (valueForAnnotation). An old MetalLB knows only the deprecated
// prefix.
func (s *Sim) readAnnotations(annotations map[string]string) map[string]string {
	out := map[string]string{}

	for name, value := range annotations {
		if !s.options.OldMetalLB || !strings.HasPrefix(name, annotationPrefix) {
			out[name] = value
		}
	}

	for name, value := range annotations {
		if suffix, ok := strings.CutPrefix(name, deprecatedPrefix); ok && out[annotationPrefix+suffix] == "" {
			out[annotationPrefix+suffix] = value
		}
	}

	return out
}
