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

// shapes are GitHub's own example payloads; what the simulator sends and
// answers is built by changing the ids, names and times in copies of them.
type shapes struct {
	examples []map[string]any
	queued   map[string]any // the plain queued example, source of fields shared by all
	waiting  map[string]any
	links    links
}

// links are where web pages and the API are, in everything that is sent.
type links struct{ web, api string }

// linksOf gives those of an Enterprise Server, or github.com's if url is empty.
func linksOf(url string) links {
	if url == "" {
		return links{web: "https://github.com", api: "https://api.github.com"}
	}
	return links{web: url, api: url + "/api/v3"}
}

// of gives the link that one of an example becomes.
func (l links) of(text string) string {
	public := linksOf("")
	if rest, is := strings.CutPrefix(text, public.api); is {
		return l.api + rest
	}
	if rest, is := strings.CutPrefix(text, public.web); is {
		return l.web + rest
	}
	return text
}

// names in the examples that stand for the caller's own.
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
		job := object(example["workflow_job"])
		switch {
		case example["action"] == statusInProgress && job["id"] == float64(14541957942):
			out.queued = example // newest of the plain examples, with every field
		case example["action"] == statusQueued && example["deployment"] != nil:
			out.waiting = example
		}
	}
	if out.queued == nil || out.waiting == nil {
		return nil, errors.New("read webhook examples: an expected example is missing")
	}
	return out, nil
}

func object(v any) map[string]any {
	m, _ := v.(map[string]any)
	return m
}

// rename deep-copies a value with the names and links of the example replaced in strings.
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
		return s.links.of(strings.ReplaceAll(v, from.owner, to.owner))
	}
	return value
}

// repositoryJSON is the full repository object.
func (s *shapes) repositoryJSON(repo *repository) map[string]any {
	source := object(s.queued["repository"])
	from := exampleNames{owner: "wolfy1339", repo: "github-events-schemas"}
	out := object(s.rename(source, from, exampleNames{repo.owner.login, repo.name}))
	out["id"], out["node_id"] = repo.id, nodeID("R", repo.id)
	out["private"], out["visibility"] = repo.private, "public"
	if repo.private {
		out["visibility"] = "private"
	}
	out["owner"] = s.accountJSON(repo.owner)
	return out
}

func (s *shapes) accountJSON(a *account) map[string]any {
	source := object(object(s.queued["repository"])["owner"])
	out := object(s.rename(source, exampleNames{owner: "wolfy1339", repo: "\x00"}, exampleNames{owner: a.login}))
	out["id"], out["node_id"] = a.id, nodeID("O", a.id)
	out["avatar_url"] = fmt.Sprintf("https://avatars.githubusercontent.com/u/%d?v=4", a.id)
	if !a.user {
		out["type"] = "Organization"
	}
	return out
}

func (s *shapes) organizationJSON(a *account) map[string]any {
	base := s.links.api + "/orgs/" + a.login
	return map[string]any{
		"login": a.login, "id": a.id, "node_id": nodeID("O", a.id), "url": base,
		"repos_url": base + "/repos", "events_url": base + "/events", "hooks_url": base + "/hooks",
		"issues_url": base + "/issues", "members_url": base + "/members{/member}",
		"public_members_url": base + "/public_members{/member}",
		"avatar_url":         fmt.Sprintf("https://avatars.githubusercontent.com/u/%d?v=4", a.id),
		"description":        "",
	}
}

func nodeID(prefix string, id int64) string {
	return prefix + "_" + base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, "kwDO%d", id))
}

// stamp writes a time as GitHub does; nil when it is zero.
func stamp(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t.UTC().Format(time.RFC3339)
}

func textOrNil(text string) any {
	if text == "" {
		return nil
	}
	return text
}

// jobJSON is a job as the API and the webhooks show it.
func (s *shapes) jobJSON(j *job) map[string]any {
	repo := j.run.repo.fullName()
	api := s.links.api + "/repos/" + repo
	out := map[string]any{
		"id": j.id, "run_id": j.run.id, "workflow_name": j.run.workflow, "head_branch": "main",
		"run_url":     fmt.Sprintf("%s/actions/runs/%d", api, j.run.id),
		"run_attempt": 1, "node_id": nodeID("CR", j.id), "head_sha": j.run.headSHA,
		"url":      fmt.Sprintf("%s/actions/jobs/%d", api, j.id),
		"html_url": fmt.Sprintf("%s/%s/actions/runs/%d/job/%d", s.links.web, repo, j.run.id, j.id),
		"status":   j.status, "conclusion": textOrNil(j.conclusion),
		"created_at": stamp(j.created), "started_at": stamp(j.created), "completed_at": stamp(j.completed),
		"name": j.name, "steps": j.stepsJSON(), "labels": j.labels,
		"check_run_url": fmt.Sprintf("%s/check-runs/%d", api, j.id),
		"runner_id":     nil, "runner_name": nil, "runner_group_id": nil, "runner_group_name": nil,
	}
	if !j.started.IsZero() {
		out["started_at"] = stamp(j.started)
	}
	if j.ran.id != 0 {
		out["runner_id"], out["runner_name"] = j.ran.id, j.ran.name
		out["runner_group_id"], out["runner_group_name"] = j.ran.groupID, j.ran.groupName
	}
	return out
}

func (j *job) stepsJSON() []any {
	steps := []any{}
	if j.started.IsZero() || j.ran.id == 0 {
		return steps
	}
	for number, name := range []string{"Set up job", "Run " + j.name, "Complete job"} {
		steps = append(steps, map[string]any{
			"name": name, "status": j.status, "conclusion": textOrNil(j.conclusion), "number": number + 1,
			"started_at": stamp(j.started), "completed_at": stamp(j.completed),
		})
		if j.status != statusCompleted {
			break
		}
	}
	return steps
}

// webhookJSON builds a workflow_job payload. Which of the optional parts are
// there follows the examples: organization for organisations, installation for
// Apps, deployment for protected environments.
func (s *Server) webhookJSON(h *hook, j *job, action string) map[string]any {
	out := map[string]any{
		"action": action, "workflow_job": s.shapes.jobJSON(j), "repository": s.shapes.repositoryJSON(j.run.repo),
		"sender": s.shapes.rename(s.shapes.queued["sender"], exampleNames{"\x00", "\x00"}, exampleNames{}),
	}
	if !j.run.repo.owner.user {
		out["organization"] = s.shapes.organizationJSON(j.run.repo.owner)
	}
	if h.Owner == "app" {
		if in := s.installationOf(j.run.repo); in != nil {
			out["installation"] = map[string]any{"id": in.ID, "node_id": nodeID("MDIzOkludGVncmF0aW9u", in.ID)}
		}
	}
	if j.environment != "" {
		deployment := object(s.shapes.rename(s.shapes.waiting["deployment"],
			exampleNames{"lineville", "elastic-machines-testing"},
			exampleNames{j.run.repo.owner.login, j.run.repo.name}))
		deployment["environment"], deployment["original_environment"] = j.environment, j.environment
		deployment["sha"] = j.run.headSHA
		out["deployment"] = deployment
	}
	return out
}
