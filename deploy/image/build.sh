#!/bin/sh
# Puts the controller and its locked dependencies into a folder: the same bytes for the same uv.lock and C compiler, whoever builds.
# The Dockerfile runs it, and so do the tests, which have no container engine.
#
#     build.sh SOURCE TARGET      PYTHON and UV name other programs than those of the PATH
set -eu
source=$1 target=$2
python=${PYTHON:-python3.11} uv=${UV:-uv}
#: Where the folder lies in the image: tracebacks name files there.
place=/opt/karpenter
#: What the AWS provider, `doctor` and the credentials of the SDK call. botocore describes four hundred more.
services="arc-zonal-shift ec2 eks events iam kms pricing service-quotas sqs ssm sso sso-oidc sts"

locked=$(mktemp)
"$uv" export --quiet --frozen --no-default-groups --no-emit-project --project "$source" --output-file "$locked" >/dev/null
"$uv" pip install --quiet --python "$python" --link-mode copy --no-deps --require-hashes --target "$target" --requirements "$locked"
"$uv" pip install --quiet --python "$python" --link-mode copy --no-deps --target "$target" "$source"
rm -f "$locked"

# Programs would name the Python they were installed with; the image has one of its own.
rm -rf "$target/bin"
mkdir "$target/bin"
printf '%s\n' '#!/usr/bin/env python3' 'from karpenter.cli.entry_point import main' 'main()' > "$target/bin/karpenter"
chmod 755 "$target/bin/karpenter"

for folder in "$target"/botocore/data/*/; do
    case " $services " in
        *" $(basename "$folder") "*) ;;
        *) rm -rf "$folder" ;;
    esac
done
find "$target" -type d \( -name tests -o -name __pycache__ \) -prune -exec rm -rf {} +
find "$target" -type f \( -name '*.pyi' -o -name '*.c' -o -name '*.h' -o -name '*.a' \) -exec rm -f {} +
# When and from where it was installed is not part of the image.
find "$target" \( -name direct_url.json -o -name uv_cache.json -o -name INSTALLER -o -name REQUESTED -o -name RECORD -o -name .lock \) -exec rm -f {} +

# Checked by content, not by time stamp, and without the path of the build.
"$python" -m compileall -q --invalidation-mode unchecked-hash -s "$target" -p "$place" "$target"
find "$target" -exec touch -h -d @0 {} +
