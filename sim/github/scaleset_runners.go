// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package github

import (
	"net/http"
	"strconv"
	"strings"
)

type agentEntry struct {
	ID         int64  `json:"id"`
	Name       string `json:"name"`
	ScaleSetID int64  `json:"runnerScaleSetId"`
}

// agentJSON is a runner as the Actions service shows it.
func agentJSON(r *runner) agentEntry {
	out := agentEntry{ID: r.id, Name: r.name}
	if r.set != nil {
		out.ScaleSetID = r.set.id
	}
	return out
}

// generateJIT registers a runner of the set that has not connected yet.
func (c *setCall) generateJIT() {
	var req struct {
		Name       string `json:"name"`
		WorkFolder string `json:"workFolder"`
	}
	if !c.read(&req) {
		return
	}
	if text := checkRunnerName(req.Name); text != "" {
		exception(c.w, http.StatusBadRequest, "VssPropertyValidationException", text)
		return
	}
	if c.s.findRunner(c.scope, req.Name) != nil {
		exception(c.w, http.StatusConflict, "AgentExistsException",
			"A runner exists with the same name: "+req.Name+".")
		return
	}
	r := c.s.newRunner(c.scope, req.Name, c.set.group)
	r.ephemeral, r.jit, r.set = true, true, c.set
	for _, l := range c.set.labels {
		c.s.addLabel(r, l.Name, true)
	}
	blob, err := c.s.encodeConfig(r, hostOf(c.r), req.WorkFolder, c.set.setting.DisableUpdate)
	if err != nil {
		exception(c.w, http.StatusInternalServerError, "VssServiceException", err.Error())
		return
	}
	sendJSON(c.w, http.StatusOK, map[string]any{
		"runner":           agentJSON(r),
		"encodedJITConfig": blob,
	})
}

// listAgents lists the runners of the caller's place, those of a name if one is given.
func (c *setCall) listAgents() {
	name, list := c.r.URL.Query().Get("agentName"), []agentEntry{}
	for _, r := range c.s.runnersOf(c.scope) {
		if name == "" || strings.EqualFold(r.name, name) {
			list = append(list, agentJSON(r))
		}
	}
	sendJSON(c.w, http.StatusOK, map[string]any{"count": len(list), "value": list})
}

// agent finds the runner that the path names; nil has been answered.
func (c *setCall) agent() *runner {
	id, err := strconv.ParseInt(c.r.PathValue("agent"), 10, 64)
	if r := c.s.runners[id]; err == nil && r != nil && r.scope == c.scope {
		return r
	}
	exception(c.w, http.StatusNotFound, "AgentNotFoundException", "No agent found with identifier "+c.r.PathValue("agent")+".")
	return nil
}

func (c *setCall) getAgent() {
	if r := c.agent(); r != nil {
		sendJSON(c.w, http.StatusOK, agentJSON(r))
	}
}

// deleteAgent refuses while a job runs.
func (c *setCall) deleteAgent() {
	switch r := c.agent(); {
	case r == nil:
	case r.busy() || c.s.core.Chance(c.s.core.Faults().DeleteBusy):
		exception(c.w, http.StatusBadRequest, "JobStillRunningException",
			"Runner "+r.name+" is still running a job.")
	default:
		c.s.removeRunner(r)
		sendJSON(c.w, http.StatusNoContent, nil)
	}
}
