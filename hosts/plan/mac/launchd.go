// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package mac

import (
	"encoding/xml"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/hyperfleet/hyperfleet/hosts/plan"
	"github.com/hyperfleet/hyperfleet/hosts/plan/parts"
)

// job is a launchd job (launchd.plist(5)).
type job struct {
	name      string
	arguments []string
	// keepAlive restarts the job when it ends. interval is the number of seconds between periodic
	// starts.
	keepAlive bool
	interval  int
	// user is the user in whose console session the job runs. If it is empty, the job runs in the
	// system session.
	user string
}

func (j job) path() string {
	if j.user != "" {
		return "/Library/LaunchAgents/" + j.name + ".plist"
	}

	return "/Library/LaunchDaemons/" + j.name + ".plist"
}

// target returns the service target of the job for launchctl, as a bash word.
func (j job) target() string {
	if j.user != "" {
		return `"gui/$(id -u ` + plan.Quote(j.user) + `)/` + j.name + `"`
	}

	return "system/" + j.name
}

// stampPath is the path of a copy of the plist that launchd has loaded. If the copy differs from the plist, the
// job is loaded again.
func (j job) stampPath() string { return stateDir + "jobs/" + j.name + ".plist" }

func (j job) vars() []plan.Var {
	return []plan.Var{
		{Name: "JOB", Value: j.name},
		{Name: "PLIST", Value: j.path()},
		{Name: "STAMP", Value: j.stampPath()},
	}
}

// addJob adds the two parts of a job: LABEL-plist, and LABEL-job, which restarts the job and fails unless the
// process then runs for minRunSeconds. Whenever LABEL-job is applied, the parts with the labels in followers are
// applied again.
func addJob(d *plan.Draft, label string, j job, minRunSeconds int, followers ...string) {
	unit := j.unitPart(label + "-plist")
	unit.Reapplies = []string{label + "-job"}
	d.Add(unit, nil)

	start := j.startPart(label+"-job", minRunSeconds)
	start.Reapplies = followers
	d.Add(start, nil)
}

func (j job) unitPart(label string) plan.Part {
	spec := parts.FileSpec{Path: j.path(), Mode: 0o644, Owner: rootWheel}

	return parts.NewFile(label, plan.Unit, spec, plan.NewText(j.renderPlist()))
}

// startPart returns a part that makes launchd restart the job. If minRunSeconds is not 0, the part fails
// unless a new process runs for that many seconds.
func (j job) startPart(label string, minRunSeconds int) plan.Part {
	probe := "launchctl print " + j.target()
	if minRunSeconds > 0 {
		probe += " | grep -E '^[[:space:]]*pid = [0-9]+'"
	}

	return parts.NewScript(label, readScript("job"), probe,
		append(j.vars(),
			plan.Var{Name: "LOGIN", Value: j.user},
			plan.Var{Name: "STABLE", Value: strconv.Itoa(minRunSeconds)})...)
}

// newJobRemoval returns a part that removes a job.
func newJobRemoval(label string, j job) plan.Part {
	return parts.NewScript(label, readScript("job-off"),
		"test ! -e "+j.path()+"\ntest -z \"$(launchctl list | grep -F "+j.name+")\"", j.vars()...)
}

// renderPlist returns the plist of the job. With AbandonProcessGroup, machines that the job has
// started keep running when the job restarts.
func (j job) renderPlist() string {
	var b strings.Builder

	b.WriteString(xml.Header +
		`<!DOCTYPE plist PUBLIC "-//Apple//DTD PLIST 1.0//EN" "http://www.apple.com/DTDs/PropertyList-1.0.dtd">` +
		"\n<plist version=\"1.0\">\n<dict>\n")

	entry := func(key, value string) { fmt.Fprintf(&b, "\t<key>%s</key>\n\t%s\n", key, value) }
	text := func(value string) string { return "<string>" + escape(value) + "</string>" }

	entry("Label", text(j.name))

	var arguments []string
	for _, argument := range j.arguments {
		arguments = append(arguments, "\t\t"+text(argument)+"\n")
	}

	entry("ProgramArguments", "<array>\n"+strings.Join(arguments, "")+"\t</array>")
	entry("RunAtLoad", "<true/>")
	entry("AbandonProcessGroup", "<true/>")

	if j.keepAlive {
		entry("KeepAlive", "<true/>")
	}

	if j.interval > 0 {
		entry("StartInterval", fmt.Sprintf("<integer>%d</integer>", j.interval))
	}

	home, logs := "/var/root", "/var/log/"

	if j.user != "" {
		entry("LimitLoadToSessionType", text("Aqua"))

		home = "/Users/" + j.user
		logs = home + "/Library/Logs/"
	}

	entry("EnvironmentVariables", "<dict>\n\t\t<key>HOME</key>\n\t\t"+text(home)+"\n"+
		"\t\t<key>PATH</key>\n\t\t<string>/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin</string>\n\t</dict>")
	entry("StandardOutPath", text(logs+j.name+".log"))
	entry("StandardErrorPath", text(logs+j.name+".log"))
	b.WriteString("</dict>\n</plist>\n")

	return b.String()
}

func escape(text string) string {
	var b strings.Builder
	// Writing to a strings.Builder never fails.
	_ = xml.EscapeText(&b, []byte(text))

	return b.String()
}

// formatLabels formats the labels of a Node, sorted by key.
func formatLabels(nodeLabels map[string]string) string {
	var pairs []string
	for _, key := range slices.Sorted(maps.Keys(nodeLabels)) {
		pairs = append(pairs, key+"="+nodeLabels[key])
	}

	return strings.Join(pairs, ",")
}
