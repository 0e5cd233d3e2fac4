// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/hyperfleet/hyperfleet/kit/log"
)

// Kind says what a part leaves at a host.
type Kind string

const (
	// File is a text at a path.
	File Kind = "file"
	// Unit is a text at a path that the host's service manager reads.
	Unit Kind = "unit"
	// Executable is a program at a path.
	Executable Kind = "binary"
	// Script changes the host by running, and leaves no file by itself.
	Script Kind = "script"
)

// Kubeconfig labels the part with which a host joins its cluster.
const Kubeconfig = "kubeconfig"

// When says on which passes a part is applied.
type When string

const (
	// Always is on the first boot and whenever the host has drifted. Such a part is hashed.
	Always When = "always"
	// FirstBoot is never again after the first boot, because machines that run on the host
	// would not survive it. Such a part is not hashed: a new version comes with a new host.
	FirstBoot When = "first-boot"
)

// Part is one thing that is brought to a host.
type Part struct {
	// Label names the part in digests, differences and events: lower case, with hyphens.
	Label string
	Kind  Kind
	When  When
	// Path, Mode and Owner ("user:group") of what the part leaves; empty for a script.
	Path  string
	Mode  fs.FileMode
	Owner string
	// Content is what Apply reads on its standard input.
	Content Content
	// Secret is what Apply reads in place of Content. It is in no digest.
	Secret log.Secret
	// Apply brings the part to the host, in bash, as root, any number of times over. It is
	// the same on the first boot and later.
	Apply string
	// Probe ends with 0 where the part is as it should be: bash commands that read alone.
	Probe string
	// Reapplies are the labels of later parts that have to follow whenever this one was
	// applied, such as the restart of a job whose program is new.
	Reapplies []string
}

// Hashed says whether the part is in the digest of a plan. It is if, and only if, it is
// applied to hosts that have drifted.
func (p Part) Hashed() bool { return p.When == Always }

// Plan is all that makes up a host, in the order in which it is brought there.
type Plan struct{ parts []Part }

// New gives the plan of parts. Parts that can't be right, such as two of one label, are
// an error.
func New(parts ...Part) (Plan, error) {
	var errs []error

	for i, part := range parts {
		errs = append(errs, checkPart(part, parts[:i], parts[i+1:]))
	}

	if err := errors.Join(errs...); err != nil {
		return Plan{}, err
	}

	return Plan{parts: slices.Clone(parts)}, nil
}

// Parts gives the parts in their order.
func (p Plan) Parts() []Part { return slices.Clone(p.parts) }

// Part gives the part of a label.
func (p Plan) Part(label string) (Part, bool) {
	i := indexOf(p.parts, label)
	if i < 0 {
		return Part{}, false
	}

	return p.parts[i], true
}

// FirstBootSteps are the parts to apply to a host that is new, in order: all.
func (p Plan) FirstBootSteps() []Part { return p.Parts() }

// DriftSteps are the parts to apply to a host of which these have drifted: they and
// those that have to follow, in order. Labels that the plan does not have and parts of
// the first boot are left out.
func (p Plan) DriftSteps(drifted ...string) []Part {
	chosen := map[string]bool{}
	for _, label := range drifted {
		chosen[label] = true
	}

	var steps []Part

	for _, part := range p.parts {
		if !chosen[part.Label] || part.When != Always {
			continue
		}

		steps = append(steps, part)

		for _, follower := range part.Reapplies {
			chosen[follower] = true
		}
	}

	return steps
}

// AllDriftSteps are the parts to apply to a host of which nothing is known, but that it
// is not new.
func (p Plan) AllDriftSteps() []Part {
	var labels []string
	for _, part := range p.parts {
		labels = append(labels, part.Label)
	}

	return p.DriftSteps(labels...)
}

func indexOf(parts []Part, label string) int {
	return slices.IndexFunc(parts, func(p Part) bool { return p.Label == label })
}

var (
	labelForm = regexp.MustCompile(`^[a-z0-9]+(-[a-z0-9]+)*$`)
	ownerForm = regexp.MustCompile(`^[a-z_][a-z0-9_-]*:[a-z_][a-z0-9_-]*$`)
)

// checkPart says what is wrong with a part, given those before and after it.
func checkPart(part Part, before, after []Part) error {
	wrong := func(format string, args ...any) error {
		return fmt.Errorf("part %q: %w", part.Label, fmt.Errorf(format, args...))
	}

	switch {
	case !labelForm.MatchString(part.Label):
		return wrong("the label must be words of a-z and 0-9 with hyphens between")
	case indexOf(before, part.Label) >= 0:
		return wrong("there are two of it: labels name one part each")
	case !slices.Contains([]Kind{File, Unit, Executable, Script}, part.Kind):
		return wrong("kind %q: must be file, unit, binary or script", part.Kind)
	case part.When != Always && part.When != FirstBoot:
		return wrong("when %q: must be always or first-boot", part.When)
	case part.Apply == "":
		return wrong("it has no script that applies it")
	case part.Probe == "" && part.When == Always:
		return wrong("it has no probe, so nobody would see it go")
	case part.Content.Size() > 0 && !part.Secret.Empty():
		return wrong("it has content and a secret: standard input carries one")
	}

	for _, follower := range part.Reapplies {
		if i := indexOf(after, follower); i < 0 || after[i].When != Always {
			return wrong("it reapplies %q, which is no later part that is always applied", follower)
		}
	}

	return checkPlace(part, wrong)
}

func checkPlace(part Part, wrong func(string, ...any) error) error {
	if part.Kind == Script {
		if part.Path != "" || part.Mode != 0 || part.Owner != "" {
			return wrong("a script leaves no file: it has no path, mode or owner")
		}

		return nil
	}

	if !path.IsAbs(part.Path) || path.Clean(part.Path) != part.Path || strings.ContainsAny(part.Path, "\n\x00") {
		return wrong("path %q: must be absolute, without . and ..", part.Path)
	}

	if part.Mode == 0 || part.Mode&^fs.ModePerm != 0 || part.Mode&0o022 != 0 {
		return wrong("mode %#o: must be permissions, and only the owner may write", part.Mode)
	}

	if !ownerForm.MatchString(part.Owner) {
		return wrong("owner %q: must be user:group", part.Owner)
	}

	return nil
}
