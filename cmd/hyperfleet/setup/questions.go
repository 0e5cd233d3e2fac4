// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package setup

import (
	"bufio"
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/term"

	"github.com/hyperfleet/hyperfleet/cmd/internal/cli"
	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// question is a question and the flag that answers it. target receives the answer. The terminal does not show
// the answer to a secret question.
type question struct {
	text, flag string
	target     *string
	isSecret   bool
	// former is the answer that a check has rejected. If the user enters nothing, it is used again.
	former string
	// check returns an error if the answer has the wrong form. It may be nil.
	check func(answer string) error
	// applies returns false if another answer makes the question unnecessary. It may be nil.
	applies func() bool
}

// hypervisorQuestions returns the questions about the hypervisor that have no answer yet. The credentials of a libvirt
// host are files, which only flags name.
func (o *options) hypervisorQuestions() []question {
	isProxmox := func() bool { return !o.isLibvirt() }
	all := []question{
		{text: "Host or URL of Proxmox VE, or URI of libvirt", flag: "endpoint", target: &o.Endpoint, check: checkEndpoint},
		{
			text: "ID of the Proxmox VE API token, such as hyperfleet@pve!operator", flag: "token-id", target: &o.TokenID,
			applies: isProxmox, check: checkTokenID,
		},
		{text: "Secret of the token", flag: "token-secret-file", target: &o.TokenSecret, isSecret: true, applies: isProxmox},
	}

	if o.asksTemplate {
		all = append(all, question{text: "Name of the template for machines", flag: "template", target: &o.Template})
	}

	return o.filterUnanswered(all)
}

// platformQuestions returns the questions about GitHub that have no answer yet.
func (o *options) platformQuestions() []question {
	var all []question
	if o.Organization == "" && o.Repository == "" {
		all = append(all, question{
			text: "GitHub organization, or a repository as owner/name", flag: "organization", target: &o.Organization,
		})
	}

	if o.AppID == "" {
		all = append(all, question{text: "GitHub token", flag: "github-token-file", target: &o.GitHubToken, isSecret: true})
	}

	return o.filterUnanswered(all)
}

func (o *options) filterUnanswered(all []question) []question {
	var out []question

	for _, q := range all {
		if *q.target == "" && (q.applies == nil || q.applies()) {
			q.former = o.former[q.target]
			out = append(out, q)
		}
	}

	return out
}

// describeFormer returns what an empty answer means.
func (q question) describeFormer() string {
	switch {
	case q.former == "":
		return ""
	case q.isSecret:
		return " [as before]"
	default:
		return " [" + q.former + "]"
	}
}

// unknownCertificateError reports that this machine does not trust the CA of a server's certificate.
type unknownCertificateError struct{ endpoint, fingerprint string }

// Error returns a message with the fingerprint and the flag that accepts the certificate.
func (e *unknownCertificateError) Error() string {
	return fmt.Sprintf("this machine does not trust the CA of the certificate of %s: compare its fingerprint with "+
		"NODE > System > Certificates in the web interface, and use --fingerprint %s", e.endpoint, e.fingerprint)
}

func (e *unknownCertificateError) question() string {
	return fmt.Sprintf("This machine does not trust the CA of the certificate of %s. "+
		"The fingerprint of the certificate is\n\n    %s\n    %s\n\n"+
		"Does NODE > System > Certificates in the web interface show the same fingerprint?",
		e.endpoint, e.fingerprint[:len(e.fingerprint)/2+1], e.fingerprint[len(e.fingerprint)/2+1:])
}

// verifyHypervisor checks the answers about the hypervisor, and normalizes the endpoint. It returns an
// unknownCertificateError if the server needs a fingerprint. On success it returns a description of the
// hypervisor.
func (o *options) verifyHypervisor(ctx context.Context) (string, error) {
	if err := o.completeAnswers(); err != nil {
		return "", err
	}

	if o.isLibvirt() {
		return o.checkHypervisor(ctx)
	}

	endpoint := o.Endpoint

	if o.Fingerprint == "" && len(o.CABundle) == 0 {
		fingerprint, isTrusted, err := probeCertificate(ctx, endpoint)
		if err != nil {
			return "", err
		}

		if !isTrusted {
			return "", &unknownCertificateError{endpoint: endpoint, fingerprint: fingerprint}
		}
	}

	result, err := o.checkHypervisor(ctx)

	return result, o.explainTLSError(err)
}

// explainTLSError returns certificate errors with the names of flags in place of the fields of a
// HypervisorCluster.
func (o *options) explainTLSError(err error) error {
	const fix = "compare the fingerprint with NODE > System > Certificates in the web interface, and use --fingerprint "

	if mismatch, ok := errors.AsType[*hypervisor.FingerprintError](err); ok {
		return errors.New("the certificate of " + o.Endpoint + " does not match --fingerprint: " + fix + mismatch.Got)
	}

	if rejection, ok := errors.AsType[*tls.CertificateVerificationError](err); ok && len(rejection.UnverifiedCertificates) > 0 {
		return fmt.Errorf("the CA in --ca-file does not verify the certificate of %s: %w: "+
			"use the CA that signed the certificate, or %s%s", o.Endpoint, rejection.Err, fix,
			hypervisor.FormatFingerprint(sha256.Sum256(rejection.UnverifiedCertificates[0].Raw)))
	}

	return err
}

// verifyPlatform checks the answers about the CI platform. On success it returns a description.
func (o *options) verifyPlatform(ctx context.Context) (string, error) {
	o.normalizeScope()

	if err := o.checkPlatform(ctx); err != nil {
		return "", err
	}

	return "the credentials are valid for " + o.Organization + o.Repository, nil
}

// prompter asks the user questions.
type prompter struct {
	in         io.Reader
	out        io.Writer
	isTerminal bool
	// width is the width of the terminal.
	width int
	lines *bufio.Reader
}

// print prints lines of text, which can quote other systems. It wraps them if the output is a terminal.
func (p *prompter) print(text string) {
	text = cli.Sanitize(text)

	if p.width > 0 {
		text = strings.TrimRight(cli.WrapHelp(text, p.width), "\n")
	}

	fmt.Fprintln(p.out, text)
}

// askAll asks the questions and stores the answers. Without a terminal, it returns an error that lists the
// flags of all questions.
func (p *prompter) askAll(questions []question) error {
	if len(questions) > 0 && !p.isTerminal {
		flags := make([]string, 0, len(questions))
		for _, q := range questions {
			flags = append(flags, "--"+q.flag)
		}

		return cli.Usagef("cannot ask questions without a terminal: give %s", strings.Join(flags, ", "))
	}

	for _, q := range questions {
		for *q.target == "" && (q.applies == nil || q.applies()) {
			fmt.Fprintf(p.out, "%s%s: ", q.text, q.describeFormer())

			answer, err := p.readAnswer(q.isSecret)
			if err != nil {
				return err
			}

			text := cmp.Or(strings.TrimSpace(answer), q.former)
			if q.check != nil && text != "" {
				if err := q.check(text); err != nil {
					p.print(err.Error())

					continue
				}
			}

			*q.target = text
		}
	}

	return nil
}

// confirm asks a yes-or-no question about a certificate. It returns an error unless the answer is y or yes.
func (p *prompter) confirm(text string) error {
	p.print(text)
	fmt.Fprint(p.out, "[y/N] ")

	answer, err := p.readAnswer(visible)
	if err != nil {
		return err
	}

	if answer = strings.ToLower(strings.TrimSpace(answer)); answer != "y" && answer != "yes" {
		return errors.New("the certificate was not accepted, and no data was sent")
	}

	return nil
}

var errInputEnded = errors.New("the input ended before all questions were answered: nothing was written")

// visible is the value of isSecret for an answer that the terminal shows.
const visible = false

func (p *prompter) readAnswer(isSecret bool) (string, error) {
	if file, ok := p.in.(*os.File); ok && isSecret {
		text, err := term.ReadPassword(int(file.Fd()))
		fmt.Fprintln(p.out)

		if errors.Is(err, io.EOF) {
			return "", errInputEnded
		}

		if err != nil {
			return "", fmt.Errorf("read answer: %w", err)
		}

		return string(text), nil
	}

	if p.lines == nil {
		p.lines = bufio.NewReader(p.in)
	}

	text, err := p.lines.ReadString('\n')
	if errors.Is(err, io.EOF) {
		return "", errInputEnded
	}

	if err != nil {
		return "", fmt.Errorf("read answer: %w", err)
	}

	return text, nil
}
