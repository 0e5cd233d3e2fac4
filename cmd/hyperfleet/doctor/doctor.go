// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"fmt"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	config "github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
	"github.com/hyperfleet/hyperfleet/cmd/internal/crds"
)

// doctor checks an installation once and collects the findings.
type doctor struct {
	client client.Client
	now    time.Time
	// namespace of the objects to check; if it is empty, all namespaces are checked. operatorNamespace is the
	// namespace in which the operator runs.
	namespace, operatorNamespace string
	// maxWait is how long an object may be not ready, or in deletion, before it is a problem.
	maxWait time.Duration

	// areCRDsForbidden is true once the API server has refused to return a CRD.
	areCRDsForbidden bool
	report           Report
}

// checkAll runs all checks, and adds their findings to the report. The report has the findings about CRDs,
// operators and RBAC roles first, because objects depend on them. An object that cannot be read is a finding.
// checkAll returns an error only if the manifests that are built into this program are invalid, or if the
// context has ended.
func (d *doctor) checkAll(ctx context.Context) error {
	d.report.Findings, d.report.Objects = []Finding{}, map[string]int{}

	all, err := crds.Load()
	if err != nil {
		return err
	}

	kinds := map[string][]*resourceDefinition{}
	for _, crd := range all {
		kinds[crds.AreaOf(crd)] = append(kinds[crds.AreaOf(crd)], crd)
	}

	var objectFindings []Finding

	leaders, canReadLeases := d.listLeaders(ctx)
	isInstalled := false

	for _, area := range config.Areas() {
		installed := d.checkCRDs(ctx, area, kinds[area])
		if len(installed) == 0 {
			continue
		}

		isInstalled = true

		findings, objects, namespaces := d.checkObjects(ctx, area, installed)
		objectFindings = append(objectFindings, findings...)

		if canReadLeases {
			d.checkOperator(ctx, area, leaders[area], objects, namespaces)
		}

		if objects == 0 && len(leaders[area]) == 0 {
			continue
		}

		if err := d.checkRoles(ctx, area, leaders[area]); err != nil {
			return err
		}
	}

	if !isInstalled {
		d.report.addf(Problem, "installation", "%v", crds.ErrNotInstalled)
	}

	d.checkReceiver(ctx)
	d.checkCaches(ctx)
	d.checkLogStore(ctx)

	for _, f := range objectFindings {
		d.report.add(f)
	}

	if err := ctx.Err(); err != nil {
		return fmt.Errorf("finish all checks within %s: %w", timeout, err)
	}

	return nil
}
