// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/hyperfleet/hyperfleet/api/exactjson"
	"github.com/hyperfleet/hyperfleet/platform/adapter/gates"
	"github.com/hyperfleet/hyperfleet/platform/client"
)

const (
	conditionFinalized = "Finalized"
	statusTrue         = "True"
	// reasonGone and reasonRemain are the reasons of the condition Finalized.
	reasonGone   = "ResourcesGone"
	reasonRemain = "ResourcesRemain"
)

// addFinalizedCondition adds the condition Finalized to the adapter's own report about a resource that is being deleted, unless
// the task file has the condition. Without it, the API would keep the resource forever.
func (r *run) addFinalizedCondition(request *client.Call) error {
	if !r.isResourceDeleting || r.p.Task.ReportsFinalized || len(r.p.Task.Resources) == 0 ||
		request.Method != http.MethodPut || !r.isStatusURL(request.URL) {
		return nil
	}

	var report map[string]any
	if exactjson.Unmarshal([]byte(request.Body), &report) != nil {
		return nil //nolint:nilerr // the API rejects the report
	}

	conditions, ok := report["conditions"].([]any)
	if !ok || report["adapter"] != r.p.Deployment.Adapter.Name || report["observed_generation"] != r.event.Generation {
		return nil
	}

	condition := map[string]any{"type": conditionFinalized, "status": statusFalse, "reason": reasonRemain}
	if r.isFinalized() {
		condition["status"], condition["reason"] = statusTrue, reasonGone
	}

	report["conditions"] = append(conditions, condition)

	body, err := json.Marshal(report)
	if err != nil {
		return fmt.Errorf("add condition %s: %w", conditionFinalized, err)
	}

	request.Body = string(body)

	return nil
}

// isFinalized reports whether the resources phase has succeeded, and no objects of the task file's resources remain.
// Objects that the adapter does not manage and detached objects may remain. The latter are not in done.Objects.
func (r *run) isFinalized() bool {
	done := r.result.Resources

	if r.result.Failure != nil || len(done.Outcomes) != len(r.p.Task.Resources) {
		return false
	}

	for i := range done.Outcomes {
		outcome := &done.Outcomes[i]
		_, exists := done.Objects[outcome.Resource]

		if exists && outcome.Reason == string(gates.ReasonNotManaged) {
			continue // it belongs to somebody else
		}

		if exists || outcome.Err != nil || outcome.Pending {
			return false
		}
	}

	return true
}
