// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package github

import (
	"embed"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
)

//go:embed payloads/workflow_job.json
var payloads embed.FS

// shapes holds GitHub's example payloads. The simulator creates webhooks and responses from copies
// of the examples, in which it replaces the ids, names and times.
type shapes struct {
	examples       []map[string]any
	queuedExample  map[string]any // the plain queued example, the source of the shared fields
	waitingExample map[string]any
	links          links
}

// links are the base URLs of web pages and of the API in all responses and webhooks.
type links struct{ web, api string }

// newLinks returns the links of an Enterprise Server, or of github.com if url is empty.
func newLinks(url string) links {
	if url == "" {
		return links{web: "https://github.com", api: "https://api.github.com"}
	}
	return links{web: url, api: url + "/api/v3"}
}

// rewrite replaces the base URL of github.com in a link of an example.
func (l links) rewrite(text string) string {
	public := newLinks("")
	if rest, ok := strings.CutPrefix(text, public.api); ok {
		return l.api + rest
	}
	if rest, ok := strings.CutPrefix(text, public.web); ok {
		return l.web + rest
	}
	return text
}

// exampleNames are the names in an example that are replaced.
type exampleNames struct{ owner, repo string }

func loadShapes(links links) (*shapes, error) {
	raw, err := payloads.ReadFile("payloads/workflow_job.json")
	if err != nil {
		return nil, fmt.Errorf("read webhook examples: %w", err)
	}
	out := &shapes{links: links}
	if err := json.Unmarshal(raw, &out.examples); err != nil {
		return nil, fmt.Errorf("parse webhook examples: %w", err)
	}
	for _, example := range out.examples {
		job := asObject(example["workflow_job"])
		switch {
		case example["action"] == statusInProgress && job["id"] == float64(14541957942):
			out.queuedExample = example // newest of the plain examples, with every field
		case example["action"] == statusQueued && example["deployment"] != nil:
			out.waitingExample = example
		}
	}
	if out.queuedExample == nil || out.waitingExample == nil {
		return nil, errors.New("read webhook examples: an expected example is missing")
	}
	return out, nil
}

func asObject(v any) map[string]any {
	m, _ := v.(map[string]any)
	return m
}

// rename returns a deep copy of a value in which it replaces the names and links of the example.
func (s *shapes) rename(value any, from, to exampleNames) any {
	switch v := value.(type) {
	case map[string]any:
		out := make(map[string]any, len(v))
		for key, item := range v {
			out[key] = s.rename(item, from, to)
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i, item := range v {
			out[i] = s.rename(item, from, to)
		}
		return out
	case string:
		if v == from.repo {
			return to.repo
		}
		v = strings.ReplaceAll(v, from.owner+"/"+from.repo, to.owner+"/"+to.repo)
		return s.links.rewrite(strings.ReplaceAll(v, from.owner, to.owner))
	}
	return value
}

// encodeRepository returns the full repository object.
func (s *shapes) encodeRepository(repo *repository) map[string]any {
	source := asObject(s.queuedExample["repository"])
	from := exampleNames{owner: "wolfy1339", repo: "github-events-schemas"}
	out := asObject(s.rename(source, from, exampleNames{repo.owner.login, repo.name}))
	out["id"], out["node_id"] = repo.id, newNodeID("R", repo.id)
	out["private"], out["visibility"] = repo.private, "public"
	if repo.private {
		out["visibility"] = "private"
	}
	out["owner"] = s.encodeAccount(repo.owner)
	return out
}

func (s *shapes) encodeAccount(a *account) map[string]any {
	source := asObject(asObject(s.queuedExample["repository"])["owner"])
	out := asObject(s.rename(source, exampleNames{owner: "wolfy1339", repo: "\x00"}, exampleNames{owner: a.login}))
	out["id"], out["node_id"] = a.id, newNodeID("O", a.id)
	out["avatar_url"] = fmt.Sprintf("https://avatars.githubusercontent.com/u/%d?v=4", a.id)
	if !a.user {
		out["type"] = "Organization"
	}
	return out
}

func (s *shapes) encodeOrganization(a *account) map[string]any {
	base := s.links.api + "/orgs/" + a.login
	return map[string]any{
		"login": a.login, "id": a.id, "node_id": newNodeID("O", a.id), "url": base,
		"repos_url": base + "/repos", "events_url": base + "/events", "hooks_url": base + "/hooks",
		"issues_url": base + "/issues", "members_url": base + "/members{/member}",
		"public_members_url": base + "/public_members{/member}",
		"avatar_url":         fmt.Sprintf("https://avatars.githubusercontent.com/u/%d?v=4", a.id),
		"description":        "",
	}
}

func newNodeID(prefix string, id int64) string {
	return prefix + "_" + base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, "kwDO%d", id))
}

// formatTime formats a time as GitHub does. It returns nil for the zero time.
func formatTime(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t.UTC().Format(time.RFC3339)
}

func nilIfEmpty(text string) any {
	if text == "" {
		return nil
	}
	return text
}

// encodeJob returns a job as the API and the webhooks represent it.
func (s *shapes) encodeJob(j *job) map[string]any {
	repo := j.run.repo.fullName()
	api := s.links.api + "/repos/" + repo
	out := map[string]any{
		"id": j.id, "run_id": j.run.id, "workflow_name": j.run.workflow, "head_branch": "main",
		"run_url":     fmt.Sprintf("%s/actions/runs/%d", api, j.run.id),
		"run_attempt": 1, "node_id": newNodeID("CR", j.id), "head_sha": j.run.headSHA,
		"url":      fmt.Sprintf("%s/actions/jobs/%d", api, j.id),
		"html_url": fmt.Sprintf("%s/%s/actions/runs/%d/job/%d", s.links.web, repo, j.run.id, j.id),
		"status":   j.status, "conclusion": nilIfEmpty(j.conclusion),
		"created_at": formatTime(j.createdAt), "started_at": formatTime(j.createdAt), "completed_at": formatTime(j.completedAt),
		"name": j.name, "steps": j.encodeSteps(), "labels": j.labels,
		"check_run_url": fmt.Sprintf("%s/check-runs/%d", api, j.id),
		"runner_id":     nil, "runner_name": nil, "runner_group_id": nil, "runner_group_name": nil,
	}
	if !j.startedAt.IsZero() {
		out["started_at"] = formatTime(j.startedAt)
	}
	if j.ranOn.id != 0 {
		out["runner_id"], out["runner_name"] = j.ranOn.id, j.ranOn.name
		out["runner_group_id"], out["runner_group_name"] = j.ranOn.groupID, j.ranOn.groupName
	}
	return out
}

func (j *job) encodeSteps() []any {
	steps := []any{}
	if j.startedAt.IsZero() || j.ranOn.id == 0 {
		return steps
	}
	for number, name := range []string{"Set up job", "Run " + j.name, "Complete job"} {
		steps = append(steps, map[string]any{
			"name": name, "status": j.status, "conclusion": nilIfEmpty(j.conclusion), "number": number + 1,
			"started_at": formatTime(j.startedAt), "completed_at": formatTime(j.completedAt),
		})
		if j.status != statusCompleted {
			break
		}
	}
	return steps
}

// encodeWebhook returns a workflow_job payload. It has the optional parts that GitHub's examples
// have: organization for organisations, installation for Apps, deployment for protected
// environments.
func (s *Server) encodeWebhook(h *hook, j *job, action string) map[string]any {
	out := map[string]any{
		"action": action, "workflow_job": s.shapes.encodeJob(j), "repository": s.shapes.encodeRepository(j.run.repo),
		"sender": s.shapes.rename(s.shapes.queuedExample["sender"], exampleNames{"\x00", "\x00"}, exampleNames{}),
	}
	if !j.run.repo.owner.user {
		out["organization"] = s.shapes.encodeOrganization(j.run.repo.owner)
	}
	if h.Owner == "app" {
		if inst := s.findInstallation(j.run.repo); inst != nil {
			out["installation"] = map[string]any{"id": inst.ID, "node_id": newNodeID("MDIzOkludGVncmF0aW9u", inst.ID)}
		}
	}
	if j.environment != "" {
		deployment := asObject(s.shapes.rename(s.shapes.waitingExample["deployment"],
			exampleNames{"lineville", "elastic-machines-testing"},
			exampleNames{j.run.repo.owner.login, j.run.repo.name}))
		deployment["environment"], deployment["original_environment"] = j.environment, j.environment
		deployment["sha"] = j.run.headSHA
		out["deployment"] = deployment
	}
	return out
}
